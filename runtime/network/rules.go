package network

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"pinfold/runtime/failpoint"
)

// tableName is what every lineage's tables are called, less the short id.
const tableName = "pinfold-"

// rules is the lineage's two nftables tables.
type rules struct {
	inet   *nftables.Table
	bridge *nftables.Table
	sets   sets
	layout map[*nftables.Table][]declared

	commits commits
	nf      nfnetlink
}

func newRules(shortID string) *rules {
	inet := &nftables.Table{Name: tableName + shortID, Family: nftables.TableFamilyINet}
	bridge := &nftables.Table{Name: tableName + shortID, Family: nftables.TableFamilyBridge}
	s := newSets(inet, bridge)
	r := &rules{inet: inet, bridge: bridge, sets: s, layout: map[*nftables.Table][]declared{
		inet:   inetLayout(shortID, s),
		bridge: bridgeLayout(shortID, s),
	}}
	r.commits.write = r.write
	return r
}

func (r *rules) tables() []*nftables.Table { return []*nftables.Table{r.inet, r.bridge} }

// intact tells whether both tables have every rule of this program's version, in
// order, and no other.
func (r *rules) intact() (bool, error) {
	for _, t := range r.tables() {
		have, err := r.nf.comments(t)
		if err != nil {
			return false, fmt.Errorf("cannot read the rules of nftables table %s: %w", t.Name, err)
		}
		for _, c := range r.layout[t] {
			var want []string
			for _, rule := range c.rules {
				want = append(want, rule.comment(t.Family))
			}
			if !slices.Equal(have[c.name], want) {
				return false, nil
			}
		}
	}
	return true, nil
}

// ensure makes the tables, sets and rules, or replaces rules that are missing or
// differ, without a moment in which packets pass unchecked. Elements stay.
func (r *rules) ensure() error {
	ok, err := r.intact()
	if ok || err != nil {
		return err
	}
	conn, err := newTransaction()
	if err != nil {
		return err
	}
	for _, t := range r.tables() {
		conn.AddTable(t)
	}
	for _, s := range r.sets.all() {
		if err := conn.AddSet(s, nil); err != nil {
			return err
		}
	}
	for _, t := range r.tables() {
		// Every chain before the first rule, which may refer to any.
		for _, d := range r.layout[t] {
			c := &nftables.Chain{Name: string(d.name), Table: t, Type: d.kind, Hooknum: d.hook, Priority: d.priority}
			conn.AddChain(c)
			conn.FlushChain(c)
		}
		for _, d := range r.layout[t] {
			for _, rule := range d.rules {
				conn.AddRule(&nftables.Rule{
					Table: t, Chain: &nftables.Chain{Name: string(d.name)}, Exprs: rule.exprs,
					UserData: userdata.AppendString(nil, userdata.TypeComment, rule.comment(t.Family)),
				})
			}
		}
	}
	if err := failpoint.Step("network.tables.make", conn.Flush); err != nil {
		return fmt.Errorf("cannot make the nftables tables %s: %w", r.inet.Name, err)
	}
	return nil
}

// drop removes both tables, if they are there.
func (r *rules) drop() error {
	for _, t := range r.tables() {
		conn, err := newTransaction()
		if err != nil {
			return err
		}
		conn.DelTable(t)
		if err := failpoint.Step("network.tables.drop", conn.Flush); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}
