# Answers every request with the same line.
use strict;
use warnings;
use IO::Socket::INET;

my $server = IO::Socket::INET->new(LocalPort => 8080, Listen => 16, ReuseAddr => 1) or die "cannot listen: $!";
while (my $client = $server->accept) {
    while (my $line = <$client>) {
        last if $line =~ /^\r?$/;
    }
    my $text = "awake\n";
    print $client "HTTP/1.0 200 OK\r\nContent-Length: ", length $text, "\r\n\r\n", $text;
    close $client;
}
