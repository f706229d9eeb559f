// Verifies what wallgate's ledger wrote, with Go's own transparency-log packages and nothing of ours.
package main

import (
	"encoding/base64"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

func read(name string) string {
	data, err := os.ReadFile(name)
	if err != nil {
		log.Fatal(err)
	}
	return string(data)
}

func open(text string, verifiers note.Verifiers) (int64, tlog.Hash) {
	opened, err := note.Open([]byte(text), verifiers)
	if err != nil {
		log.Fatal("note: ", err)
	}
	lines := strings.Split(opened.Text, "\n")
	size, err := strconv.ParseInt(lines[1], 10, 64)
	if err != nil {
		log.Fatal(err)
	}
	root, err := tlog.ParseHash(lines[2])
	if err != nil {
		log.Fatal(err)
	}
	return size, root
}

// storage serves tlog's stored hashes from the hashes of the records in the entry bundles.
type storage []tlog.Hash

func (s storage) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(indexes))
	for i, at := range indexes {
		out[i] = s[at]
	}
	return out, nil
}

func main() {
	verifier, err := note.NewVerifier(read("vkey"))
	if err != nil {
		log.Fatal("vkey: ", err)
	}
	verifiers := note.VerifierList(verifier)
	earlySize, earlyRoot := open(read("early"), verifiers)
	size, root := open(read("late"), verifiers)

	proofs, _ := filepath.Glob("*.tlog-proof")
	if len(proofs) == 0 {
		log.Fatal("no proofs")
	}
	for _, name := range proofs {
		parts := strings.SplitN(read(name), "\n\n", 2)
		lines := strings.Split(parts[0], "\n")
		index, err := strconv.ParseInt(strings.TrimPrefix(lines[1], "index "), 10, 64)
		if err != nil || lines[0] != "c2sp.org/tlog-proof@v1" {
			log.Fatal(name, ": ", lines[0], err)
		}
		var proof tlog.RecordProof
		for _, line := range lines[2:] {
			hash, err := base64.StdEncoding.DecodeString(line)
			if err != nil {
				log.Fatal(err)
			}
			proof = append(proof, *(*tlog.Hash)(hash))
		}
		n, top := open(parts[1], verifiers)
		record := []byte(read(strings.TrimSuffix(name, "tlog-proof") + "record"))
		if err := tlog.CheckRecord(proof, n, top, index, tlog.RecordHash(record)); err != nil {
			log.Fatal(name, ": ", err)
		}
		record[10] ^= 1
		if err := tlog.CheckRecord(proof, n, top, index, tlog.RecordHash(record)); err == nil {
			log.Fatal(name, ": holds for an altered record")
		}
	}

	// The whole tree again, from the exported bundles.
	var stored storage
	var count int64
	for tile := 0; count < size; tile++ {
		matches, _ := filepath.Glob(fmt.Sprintf("log/tile/entries/%03d*", tile))
		if len(matches) != 1 {
			log.Fatal("bundles of tile ", tile, ": ", matches)
		}
		name := matches[0]
		if strings.HasSuffix(name, ".p") {
			inner, _ := filepath.Glob(name + "/*")
			name = inner[0]
		}
		data := []byte(read(name))
		for len(data) > 0 {
			length := int(data[0])<<8 | int(data[1])
			hashes, err := tlog.StoredHashes(count, data[2:2+length], stored)
			if err != nil {
				log.Fatal(err)
			}
			stored = append(stored, hashes...)
			data = data[2+length:]
			count++
		}
	}
	top, err := tlog.TreeHash(size, stored)
	if err != nil || top != root {
		log.Fatal("the bundles do not have the signed root ", err)
	}
	tree, err := tlog.ProveTree(size, earlySize, stored)
	if err != nil {
		log.Fatal(err)
	}
	if err := tlog.CheckTree(tree, size, root, earlySize, earlyRoot); err != nil {
		log.Fatal("consistency: ", err)
	}
	fmt.Println("all hold:", len(proofs), "records,", earlySize, "before", size)
}
