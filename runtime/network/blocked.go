package network

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/nftables"
)

// ForwardingBlockedBy names the nftables chains of other programs that drop
// forwarded packets unless a rule of theirs says otherwise, as Docker's and many
// firewalls' do. Our rules cannot overrule them: behind such a chain, internet =
// true and ports published beyond loopback do not work until its owner accepts
// traffic of interfaces named bSHORTID*, in Docker's case in chain DOCKER-USER.
// Where bridge-nf-call-iptables is on, that holds for traffic within a network too.
// Chains of the legacy iptables kernel interface are not seen.
func (n *Net) ForwardingBlockedBy(ctx context.Context) ([]string, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return ForwardBlockers()
}

// ForwardBlockers is ForwardingBlockedBy for who has no network here.
func ForwardBlockers() ([]string, error) {
	conn, err := newTransaction()
	if err != nil {
		return nil, err
	}
	var out []string
	for family, name := range map[nftables.TableFamily]string{nftables.TableFamilyIPv4: "ip", nftables.TableFamilyINet: "inet"} {
		chains, err := conn.ListChainsOfTableFamily(family)
		if err != nil {
			return nil, fmt.Errorf("cannot list nftables chains: %w", err)
		}
		for _, c := range chains {
			if c.Hooknum == nil || *c.Hooknum != *nftables.ChainHookForward || c.Policy == nil || *c.Policy != nftables.ChainPolicyDrop {
				continue
			}
			if !strings.HasPrefix(c.Table.Name, tableName) {
				out = append(out, fmt.Sprintf("chain %s of nftables table %s %s", c.Name, name, c.Table.Name))
			}
		}
	}
	return out, nil
}
