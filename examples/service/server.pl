# Answers every HTTP request with the configured greeting.
use strict;
use warnings;
use IO::Socket::INET;

my %conf;
open my $file, '<', $ARGV[0] or die "cannot read $ARGV[0]: $!\n";
while (<$file>) { $conf{$1} = $2 if /^(\w+) (.*)$/ }

my $server = IO::Socket::INET->new(LocalPort => $conf{port}, Listen => 16, ReuseAddr => 1)
    or die "cannot listen on port $conf{port}: $!\n";
while (my $client = $server->accept) {
    local $SIG{ALRM} = sub { die "slow client\n" };
    eval {
        alarm 5;
        while (my $line = <$client>) { last if $line =~ /^\r?\n$/ }
        print $client "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n$conf{greeting}\n";
        alarm 0;
    };
    close $client;
}
