package state

import (
	"encoding/binary"
	"hash/crc32"
)

// CRC-32C (Castagnoli): every processor we run on has an instruction for it.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const sealSize = 4

// checksum covers where the document lies as well as what it says, so that a
// flipped bit in a key is noticed too.
func checksum(bucket, key string, doc []byte) uint32 {
	var head [64]byte
	b := append(head[:0], bucket...)
	b = append(b, 0)
	b = append(b, key...)
	b = append(b, 0)
	return crc32.Update(crc32.Checksum(b, castagnoli), castagnoli, doc)
}

// seal returns doc followed by its checksum, big-endian.
func seal(bucket, key string, doc []byte) []byte {
	out := make([]byte, 0, len(doc)+sealSize)
	out = append(out, doc...)
	return binary.BigEndian.AppendUint32(out, checksum(bucket, key, doc))
}

// unseal returns a copy of the document in value; false when it is damaged.
func unseal(bucket, key string, value []byte) (doc []byte, ok bool) {
	n := len(value) - sealSize
	if n < 0 {
		return nil, false
	}
	if binary.BigEndian.Uint32(value[n:]) != checksum(bucket, key, value[:n]) {
		return nil, false
	}
	doc = make([]byte, n)
	copy(doc, value)
	return doc, true
}
