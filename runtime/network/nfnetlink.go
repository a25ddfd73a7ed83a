package network

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// socketBuffer is the size in bytes asked of netlink sockets, in both directions.
// The default loses acknowledgements of large transactions (ENOBUFS) and refuses
// to send them (EMSGSIZE).
const socketBuffer = 32 << 20

// nfnetlink keeps a socket for writing elements and one for reading from use to
// use. Closing such a socket makes the kernel wait for everything that was deleted
// to be released, ten milliseconds and more. After an error the socket is given up,
// for answers may be left in it.
type nfnetlink struct {
	writing sync.Mutex
	write   *nftables.Conn

	reading sync.Mutex
	read    *netlink.Conn
}

func buffers(c *netlink.Conn) error {
	return errors.Join(c.SetReadBuffer(socketBuffer), c.SetWriteBuffer(socketBuffer))
}

// newTransaction returns a connection that sends what is added to it in one
// transaction, all or nothing, on Flush. Its socket lasts from Flush to Flush.
func newTransaction() (*nftables.Conn, error) {
	return nftables.New(nftables.WithSockOptions(buffers))
}

// transaction sends what fill adds to the connection, all or nothing. It is for
// elements; rules are echoed and need newTransaction.
func (nf *nfnetlink) transaction(fill func(*nftables.Conn) error) error {
	nf.writing.Lock()
	defer nf.writing.Unlock()
	if nf.write == nil {
		conn, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(buffers))
		if err != nil {
			return fmt.Errorf("cannot open a netlink socket: %w", err)
		}
		nf.write = conn
	}
	err := fill(nf.write)
	if err == nil {
		err = nf.write.Flush()
	}
	if err != nil {
		nf.write.CloseLasting()
		nf.write = nil
	}
	return err
}

// reader returns the socket for reading. The caller holds nf.reading.
func (nf *nfnetlink) reader() (*netlink.Conn, error) {
	if nf.read != nil {
		return nf.read, nil
	}
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("cannot open a netlink socket: %w", err)
	}
	if err := conn.SetReadBuffer(socketBuffer); err != nil {
		conn.Close()
		return nil, fmt.Errorf("cannot enlarge a netlink socket's buffer: %w", err)
	}
	nf.read = conn
	return conn, nil
}

func (nf *nfnetlink) close() error {
	nf.writing.Lock()
	defer nf.writing.Unlock()
	nf.reading.Lock()
	defer nf.reading.Unlock()
	var errs error
	if nf.write != nil {
		errs = nf.write.CloseLasting()
		nf.write = nil
	}
	if nf.read != nil {
		errs = errors.Join(errs, nf.read.Close())
		nf.read = nil
	}
	return errs
}

// comments returns the comments of a table's rules by chain, in order; none when
// there is no such table.
func (nf *nfnetlink) comments(t *nftables.Table) (map[chain][]string, error) {
	out := map[chain][]string{}
	err := nf.dump(unix.NFT_MSG_GETRULE, t.Family, []netlink.Attribute{
		{Type: unix.NFTA_RULE_TABLE, Data: []byte(t.Name + "\x00")},
	}, func(ad *netlink.AttributeDecoder) {
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
func (nf *nfnetlink) elements(s *nftables.Set) ([]nftables.SetElement, error) {
	var out []nftables.SetElement
	err := nf.dump(unix.NFT_MSG_GETSETELEM, s.Table.Family, []netlink.Attribute{
		{Type: unix.NFTA_SET_ELEM_LIST_TABLE, Data: []byte(s.Table.Name + "\x00")},
		{Type: unix.NFTA_SET_ELEM_LIST_SET, Data: []byte(s.Name + "\x00")},
	}, func(ad *netlink.AttributeDecoder) {
		for ad.Next() {
			if ad.Type() == unix.NFTA_SET_ELEM_LIST_ELEMENTS {
				ad.Nested(func(list *netlink.AttributeDecoder) error {
					for list.Next() {
						list.Nested(func(e *netlink.AttributeDecoder) error {
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

func element(ad *netlink.AttributeDecoder) nftables.SetElement {
	var e nftables.SetElement
	value := func(into *[]byte) func(*netlink.AttributeDecoder) error {
		return func(v *netlink.AttributeDecoder) error {
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

// dump asks for a list and passes the attributes of each answer to each. What
// does not exist has no answers.
func (nf *nfnetlink) dump(kind int, family nftables.TableFamily, attrs []netlink.Attribute, each func(*netlink.AttributeDecoder)) error {
	body, err := netlink.MarshalAttributes(attrs)
	if err != nil {
		return err
	}
	msgs, err := nf.ask(netlink.Message{
		Header: netlink.Header{
			Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind),
			Flags: netlink.Request | netlink.Dump,
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
		ad, err := netlink.NewAttributeDecoder(m.Data[4:])
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

// dumpTries is how often a dump is repeated that a transaction has cut in two.
const dumpTries = 20

// ask sends a dump request and returns one consistent look, if the tables stand
// still long enough for one in dumpTries.
func (nf *nfnetlink) ask(request netlink.Message) ([]netlink.Message, error) {
	nf.reading.Lock()
	defer nf.reading.Unlock()
	var msgs []netlink.Message
	for range dumpTries {
		conn, err := nf.reader()
		if err != nil {
			return nil, err
		}
		if msgs, err = conn.Execute(request); err != nil {
			conn.Close()
			nf.read = nil
			return nil, err
		}
		if !slices.ContainsFunc(msgs, func(m netlink.Message) bool { return m.Header.Flags&netlink.DumpInterrupted != 0 }) {
			break
		}
	}
	return msgs, nil
}

// lineageTables lists the inet tables of every lineage on this host.
func (nf *nfnetlink) lineageTables() ([]*nftables.Table, error) {
	var out []*nftables.Table
	err := nf.dump(unix.NFT_MSG_GETTABLE, nftables.TableFamilyINet, nil, func(ad *netlink.AttributeDecoder) {
		for ad.Next() {
			if ad.Type() != unix.NFTA_TABLE_NAME {
				continue
			}
			if name := ad.String(); strings.HasPrefix(name, tableName) {
				out = append(out, &nftables.Table{Name: name, Family: nftables.TableFamilyINet})
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("cannot list nftables tables: %w", err)
	}
	return out, nil
}
