# Asks the service every five seconds and prints what it says.
use strict;
use warnings;
use IO::Socket::INET;

$| = 1;
my ($address, $port) = @ARGV;
while (1) {
    my $service = IO::Socket::INET->new(PeerAddr => $address, PeerPort => $port, Timeout => 2);
    if ($service) {
        print $service "GET / HTTP/1.0\r\n\r\n";
        my $answer = join '', <$service>;
        $answer =~ s/^.*?\r\n\r\n//s;
        print $answer;
        sleep 5;
    } else {
        print "no answer: $@\n";
        sleep 1;
    }
}
