package network

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// Link names, at most 15 bytes (IFNAMSIZ-1):
//
//	b SHORTID NETWORKID   the bridge of a network, 1+6+8
//	p SHORTID BASE64ID    the host's end of a sandbox's veth, 1+6+8
//
// BASE64ID is the instance id's 48 bits in URL-safe base64, so two instances
// never share a name. The alias spells everything out.
const (
	bridgeKind = "b"
	portKind   = "p"

	// insideName is the far end's name in the sandbox.
	insideName = "eth0"
)

func isHex(s string, n int) bool {
	return len(s) == n && strings.Trim(s, "0123456789abcdef") == ""
}

func (n *Net) bridgeName(networkID string) (string, error) {
	if len(networkID) != 8 || strings.Trim(networkID, "0123456789abcdefghijklmnopqrstuvwxyz") != "" {
		return "", fmt.Errorf("network id %q: must be 8 lower-case letters and digits", networkID)
	}
	return bridgeKind + n.shortID + networkID, nil
}

func (n *Net) portName(instanceID string) (string, error) {
	if !isHex(instanceID, 12) {
		return "", fmt.Errorf("instance id %q: must be 12 lower-case hex characters", instanceID)
	}
	id, err := hex.DecodeString(instanceID)
	if err != nil {
		return "", err
	}
	return portKind + n.shortID + base64.RawURLEncoding.EncodeToString(id), nil
}

// instanceFromPort is the inverse of portName, whatever the link's mark.
func (n *Net) instanceFromPort(name string) (string, bool) {
	rest, found := strings.CutPrefix(name, portKind+n.shortID)
	if !found || len(rest) != 8 {
		return "", false
	}
	id, err := base64.RawURLEncoding.DecodeString(rest)
	if err != nil {
		return "", false
	}
	return hex.EncodeToString(id), true
}

// networkFromBridge is the inverse of bridgeName, whatever the link's mark.
func (n *Net) networkFromBridge(name string) (string, bool) {
	rest, found := strings.CutPrefix(name, bridgeKind+n.shortID)
	return rest, found && len(rest) == 8
}

// The mark is the start of a link's alias. What follows it, after a space, are
// facts that Observe compares the host with.
func (n *Net) networkMark(id string) string  { return "pinfold " + n.shortID + " network " + id }
func (n *Net) instanceMark(id string) string { return "pinfold " + n.shortID + " instance " + id }

// markMAC is the hardware address of a link with the given mark. A link gets it
// in the very message that makes it, while the alias needs a second one: so a
// link that a crash left without alias is still known for ours.
func markMAC(mark string) net.HardwareAddr {
	sum := sha256.Sum256([]byte(mark))
	return append(net.HardwareAddr{0x06}, sum[:5]...)
}

// sandboxMAC is the hardware address of the sandbox with the given IPv4 address:
// 02:70 and its four bytes. 02 marks it as locally administered (IEEE 802).
func sandboxMAC(addr netip.Addr) net.HardwareAddr {
	ip := addr.As4()
	return append(net.HardwareAddr{0x02, 0x70}, ip[:]...)
}

// marked tells whether l bears the mark, and returns the facts in its alias.
func marked(l link, mark string) (facts string, ours bool) {
	if l.alias == "" {
		return "", bytes.Equal(l.mac, markMAC(mark))
	}
	if l.alias == mark {
		return "", true
	}
	return strings.CutPrefix(l.alias, mark+" ")
}

// networkOf returns the id of the network whose bridge l is, if it is ours.
func (n *Net) networkOf(l link) (string, bool) {
	id, named := n.networkFromBridge(l.name)
	if !named || l.kind != "bridge" {
		return "", false
	}
	_, ours := marked(l, n.networkMark(id))
	return id, ours
}

// instanceOf returns the id of the instance whose veth l is, if it is ours.
func (n *Net) instanceOf(l link) (string, bool) {
	id, named := n.instanceFromPort(l.name)
	if !named || l.kind != "veth" {
		return "", false
	}
	_, ours := marked(l, n.instanceMark(id))
	return id, ours
}
