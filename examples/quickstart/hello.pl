# A web server that needs nothing but perl: answers every request with a line.
use strict;
use warnings;
use IO::Socket::INET;

my $server = IO::Socket::INET->new(LocalPort => 8080, Listen => 16, ReuseAddr => 1)
    or die "cannot listen: $!";
while (my $client = $server->accept) {
    local $SIG{ALRM} = sub { die "slow client\n" };
    eval {
        alarm 5;
        while (my $line = <$client>) { last if $line =~ /^\r?\n$/ }
        print $client "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nhello from a sandbox\n";
        alarm 0;
    };
    close $client;
}
