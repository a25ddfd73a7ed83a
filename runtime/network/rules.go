package network

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
	mdlnetlink "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// socketBuffer is the size in bytes asked of netlink sockets, in both directions.
// The default loses acknowledgements of large transactions (ENOBUFS) and refuses
// to send them (EMSGSIZE).
const socketBuffer = 32 << 20

// tableName is what every lineage's tables are called, less the short id.
const tableName = "pinfold-"

// rules is the lineage's two nftables tables.
type rules struct {
	inet   *nftables.Table
	bridge *nftables.Table
	sets   sets
	layout map[*nftables.Table][]declared

	commits commits
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

// newTransaction returns a connection that sends what is added to it in one
// transaction, all or nothing, on Flush.
func newTransaction() (*nftables.Conn, error) {
	return nftables.New(nftables.WithSockOptions(func(c *mdlnetlink.Conn) error {
		return errors.Join(c.SetReadBuffer(socketBuffer), c.SetWriteBuffer(socketBuffer))
	}))
}

// intact tells whether both tables have every rule of this program's version, in
// order, and no other.
func (r *rules) intact() (bool, error) {
	for _, t := range r.tables() {
		have, err := comments(t)
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
	if err := conn.Flush(); err != nil {
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
		if err := conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

// comments returns the comments of a table's rules by chain, in order; none when
// there is no such table.
func comments(t *nftables.Table) (map[chain][]string, error) {
	out := map[chain][]string{}
	err := dumpNFT(unix.NFT_MSG_GETRULE, t.Family, []mdlnetlink.Attribute{
		{Type: unix.NFTA_RULE_TABLE, Data: []byte(t.Name + "\x00")},
	}, func(ad *mdlnetlink.AttributeDecoder) {
		var name chain
		var words string
		for ad.Next() {
			switch ad.Type() {
			case unix.NFTA_RULE_CHAIN:
				name = chain(ad.String())
			case unix.NFTA_RULE_USERDATA:
				words, _ = userdata.GetString(ad.Bytes(), userdata.TypeComment)
			}
		}
		out[name] = append(out[name], words)
	})
	return out, err
}

// elements returns a set's elements; none when there is no such set.
func elements(s *nftables.Set) ([]nftables.SetElement, error) {
	var out []nftables.SetElement
	err := dumpNFT(unix.NFT_MSG_GETSETELEM, s.Table.Family, []mdlnetlink.Attribute{
		{Type: unix.NFTA_SET_ELEM_LIST_TABLE, Data: []byte(s.Table.Name + "\x00")},
		{Type: unix.NFTA_SET_ELEM_LIST_SET, Data: []byte(s.Name + "\x00")},
	}, func(ad *mdlnetlink.AttributeDecoder) {
		for ad.Next() {
			if ad.Type() == unix.NFTA_SET_ELEM_LIST_ELEMENTS {
				ad.Nested(func(list *mdlnetlink.AttributeDecoder) error {
					for list.Next() {
						list.Nested(func(e *mdlnetlink.AttributeDecoder) error {
							out = append(out, element(e))
							return nil
						})
					}
					return nil
				})
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("cannot read set %s of nftables table %s: %w", s.Name, s.Table.Name, err)
	}
	return out, nil
}

func element(ad *mdlnetlink.AttributeDecoder) nftables.SetElement {
	var e nftables.SetElement
	value := func(into *[]byte) func(*mdlnetlink.AttributeDecoder) error {
		return func(v *mdlnetlink.AttributeDecoder) error {
			for v.Next() {
				if v.Type() == unix.NFTA_DATA_VALUE {
					*into = v.Bytes()
				}
			}
			return nil
		}
	}
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_SET_ELEM_KEY:
			ad.Nested(value(&e.Key))
		case unix.NFTA_SET_ELEM_DATA:
			ad.Nested(value(&e.Val))
		case unix.NFTA_SET_ELEM_USERDATA:
			e.Comment, _ = userdata.GetString(ad.Bytes(), userdata.NFTNL_UDATA_SET_ELEM_COMMENT)
		}
	}
	return e
}

// dumpNFT asks for a list and passes the attributes of each answer to each. What
// does not exist has no answers.
func dumpNFT(kind int, family nftables.TableFamily, attrs []mdlnetlink.Attribute, each func(*mdlnetlink.AttributeDecoder)) error {
	body, err := mdlnetlink.MarshalAttributes(attrs)
	if err != nil {
		return err
	}
	conn, err := mdlnetlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetReadBuffer(socketBuffer); err != nil {
		return err
	}
	msgs, err := conn.Execute(mdlnetlink.Message{
		Header: mdlnetlink.Header{
			Type:  mdlnetlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind),
			Flags: mdlnetlink.Request | mdlnetlink.Dump,
		},
		Data: append([]byte{byte(family), unix.NFNETLINK_V0, 0, 0}, body...),
	})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, m := range msgs {
		if len(m.Data) < 4 {
			return fmt.Errorf("an answer of %d bytes", len(m.Data))
		}
		ad, err := mdlnetlink.NewAttributeDecoder(m.Data[4:])
		if err != nil {
			return err
		}
		each(ad)
		if err := ad.Err(); err != nil {
			return err
		}
	}
	return nil
}

// lineageTables lists the inet tables of every lineage on this host.
func lineageTables() ([]*nftables.Table, error) {
	conn, err := newTransaction()
	if err != nil {
		return nil, err
	}
	all, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, fmt.Errorf("cannot list nftables tables: %w", err)
	}
	return slices.DeleteFunc(all, func(t *nftables.Table) bool { return !strings.HasPrefix(t.Name, tableName) }), nil
}
