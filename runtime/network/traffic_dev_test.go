package network

import "testing"

func TestTrafficOf(t *testing.T) {
	const head = `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:     120       2    0    0    0     0          0         0      120       2    0    0    0     0       0          0
`
	for line, want := range map[string][2]uint64{
		"  eth0: 1048576     700    0    0    0     0          0         0    40960     512    0    0    0     0       0          0\n": {1048576, 40960},
		"  eth0:18446744073709551615 1 0 0 0 0 0 0 7 1 0 0 0 0 0 0\n":                                                                  {1<<64 - 1, 7},
		"": {}, // the link is gone
		" eth01: 5 1 0 0 0 0 0 0 7 1 0 0 0 0 0 0\n": {},
	} {
		received, sent, err := trafficOf(head + line)
		if err != nil || received != want[0] || sent != want[1] {
			t.Errorf("%q: %d, %d, %v; want %d", line, received, sent, err, want)
		}
	}
	for _, line := range []string{"eth0: 1 2 3\n", "eth0: x 1 0 0 0 0 0 0 7 1 0 0 0 0 0 0\n", "eth0: 5 1 0 0 0 0 0 0 -7 1 0 0 0 0 0 0\n"} {
		if _, _, err := trafficOf(head + line); err == nil {
			t.Errorf("%q is accepted", line)
		}
	}
}
