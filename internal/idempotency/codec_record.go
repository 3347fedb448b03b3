package idempotency

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"
)

// The fields of a record, in their order:
//
//	state | bit set of what is there | attempt | token | texts | times | numbers | replaced record
//
// Of texts, times and numbers only those are written that the bit set has. A time is in
// whole milliseconds since 1970: what is finer is lost, and the time zone is UTC again.

// states are the states with the number by which they are stored. Zero is none.
var states = [...]State{0: "", 1: InFlight, 2: Complete, 3: Released, 4: Held}

// The bit set: the lowest bit is [Record.Hold] itself, then come those of the texts,
// the times, the numbers, and of the record that is replaced. All that most records
// have is among the first 14 bits, which take two bytes.
const (
	hasHold     = 1 << 0
	firstText   = 1
	firstTime   = firstText + len(recordTexts{})
	firstNumber = firstTime + len(recordTimes{})
	hasReplaced = 1 << (firstNumber + len(recordNumbers{}))
	unknownBits = ^uint64(hasReplaced<<1 - 1)
)

type (
	recordTexts   [7]*string
	recordTimes   [4]*time.Time
	recordNumbers [2]*int
)

func (r *Record) texts() recordTexts {
	return recordTexts{&r.ExecutionID, &r.Fingerprint, &r.Provider, &r.DeliveryID, &r.SealedBy, &r.ParentID, &r.Follows}
}

func (r *Record) times() recordTimes {
	return recordTimes{&r.Claimed, &r.Ended, &r.LeaseUntil, &r.Expires}
}

func (r *Record) numbers() recordNumbers { return recordNumbers{&r.Status, &r.FreedAttempts} }

// AppendRecord appends the stored form of a key's record. Times are stored in whole
// milliseconds.
func AppendRecord(dst []byte, key Key, r *Record) []byte {
	room := frameSize + r.room()
	if r.Replaces != nil {
		room += r.Replaces.room()
	}
	dst = grow(dst, room)
	at := len(dst)
	dst = r.append(beginFrame(dst, recordMagic), r.Replaces)
	endFrame(dst[at:], &key, "")
	return dst
}

// room is at least how many bytes the fields take, without those of a replaced record.
func (r *Record) room() int {
	room := 1 + 3 + binary.MaxVarintLen64*(1+len(recordTimes{})+len(recordNumbers{})) + textRoom(r.Token)
	for _, text := range r.texts() {
		room += textRoom(*text)
	}
	return room
}

func (r *Record) append(dst []byte, replaces *Record) []byte {
	dst = append(dst, byte(max(slices.Index(states[:], r.State), 0)))
	var has uint64
	if r.Hold {
		has |= hasHold
	}
	for i, text := range r.texts() {
		if *text != "" {
			has |= 1 << (firstText + i)
		}
	}
	for i, at := range r.times() {
		if !at.IsZero() {
			has |= 1 << (firstTime + i)
		}
	}
	for i, number := range r.numbers() {
		if *number != 0 {
			has |= 1 << (firstNumber + i)
		}
	}
	if replaces != nil {
		has |= hasReplaced
	}
	dst = binary.AppendUvarint(dst, has)
	dst = binary.AppendVarint(dst, int64(r.Attempt))
	dst = appendText(dst, r.Token)
	for _, text := range r.texts() {
		if *text != "" {
			dst = appendText(dst, *text)
		}
	}
	for _, at := range r.times() {
		if !at.IsZero() {
			dst = binary.AppendUvarint(dst, uint64(at.UnixMilli()))
		}
	}
	for _, number := range r.numbers() {
		if *number != 0 {
			dst = binary.AppendVarint(dst, int64(*number))
		}
	}
	if replaces != nil {
		// Only a complete record is replaced, and that replaces none itself.
		dst = replaces.append(dst, nil)
	}
	return dst
}

// DecodeRecord reads what [AppendRecord] wrote for the same key.
func DecodeRecord(key Key, stored []byte) (*Record, error) {
	if err := checkMagic(recordMagic, stored); err != nil {
		return nil, err
	}
	content, err := openFrame(stored, &key, "")
	if err != nil {
		return nil, err
	}
	var room [320]byte // enough for the texts of most records
	f := recordFields{fields: fields{rest: content}}
	r := new(Record)
	texts, replaces := f.record(r, room[:0])
	if replaces {
		r.Replaces = new(Record)
		if texts, replaces = f.record(r.Replaces, texts); replaces {
			f.fail(errors.New("the record that it replaces replaces another one"))
		}
	}
	if err := f.end("the record"); err != nil {
		return nil, err
	}
	f.setTexts(string(texts))
	return r, nil
}

// recordFields reads the fields of records. The texts are gathered, and become parts of
// one string in the end.
type recordFields struct {
	fields
	ends  [2 * (1 + len(recordTexts{}))]textEnd
	found int
}

// textEnd says where the text of one field ends. It begins where the one before ends.
type textEnd struct {
	field *string
	at    int
}

// record reads one record, without its texts, which it appends to those before. It
// reports whether a record that it replaces follows.
func (f *recordFields) record(r *Record, texts []byte) (_ []byte, replaces bool) {
	if state := int(f.byte()); state > 0 && state < len(states) {
		r.State = states[state]
	} else {
		f.fail(fmt.Errorf("its state %d is unknown", state))
	}
	has := f.uvarint()
	if has&unknownBits != 0 {
		f.fail(fmt.Errorf("its fields %#x are unknown", has&unknownBits))
	}
	r.Hold = has&hasHold != 0
	r.Attempt = f.int()
	before := len(texts)
	if texts = f.text(&r.Token, texts); len(texts) == before {
		f.fail(errors.New("it has no token"))
	}
	for i, text := range r.texts() {
		if has&(1<<(firstText+i)) != 0 {
			texts = f.text(text, texts)
		}
	}
	for i, at := range r.times() {
		if has&(1<<(firstTime+i)) != 0 {
			*at = time.UnixMilli(int64(f.uvarint())).UTC()
		}
	}
	for i, number := range r.numbers() {
		if has&(1<<(firstNumber+i)) != 0 {
			*number = f.int()
		}
	}
	return texts, f.err == nil && has&hasReplaced != 0
}

// setTexts sets all fields whose texts were read, given all texts.
func (f *recordFields) setTexts(all string) {
	begin := 0
	for _, end := range f.ends[:f.found] {
		*end.field = all[begin:end.at]
		begin = end.at
	}
}

// The forms of a text: its first number is the form in the two lowest bits, and above
// them a length. Execution IDs and fingerprints take half of the bytes that way, and so
// do the delivery IDs of many senders.
const (
	// plainText: so many bytes.
	plainText = iota
	// uuidText: 16 bytes, for a UUID in lower case. The length is zero.
	uuidText
	// hashText: so many bytes, then 32 bytes for 64 digits of lower-case hex.
	hashText
)

const (
	uuidSize   = 16
	hashSize   = 32
	uuidLength = len("00000000-0000-0000-0000-000000000000")
)

// textRoom is at least how many bytes a text takes.
func textRoom(text string) int { return binary.MaxVarintLen32 + len(text) }

func appendText(dst []byte, text string) []byte {
	if id, ok := parseUUID(text); ok {
		return append(append(dst, uuidText), id[:]...)
	}
	if head := len(text) - hex.EncodedLen(hashSize); head >= 0 {
		if hash, ok := parseHash(text[head:]); ok {
			dst = binary.AppendUvarint(dst, uint64(head)<<2|hashText)
			return append(append(dst, text[:head]...), hash[:]...)
		}
	}
	dst = binary.AppendUvarint(dst, uint64(len(text))<<2) // plainText
	return append(dst, text...)
}

// text reads what appendText wrote, for a field, and appends the text to those before.
func (f *recordFields) text(field *string, texts []byte) []byte {
	lead := f.uvarint()
	form, length := lead&3, int(min(lead>>2, uint64(len(f.rest)+1)))
	switch {
	case form == plainText:
		texts = append(texts, f.bytes(length)...)
	case form == uuidText && length == 0:
		texts = appendUUID(texts, f.bytes(uuidSize))
	case form == hashText:
		texts = append(texts, f.bytes(length)...)
		texts = hex.AppendEncode(texts, f.bytes(hashSize))
	default:
		f.fail(fmt.Errorf("the form %#x of a text in it is unknown", lead))
	}
	f.ends[f.found] = textEnd{field, len(texts)}
	f.found++
	return texts
}

// parseUUID reads a UUID in lower case, and no other form of one: the text must come
// out as it was.
func parseUUID(text string) (id [uuidSize]byte, ok bool) {
	if len(text) != uuidLength || text[8] != '-' || text[13] != '-' || text[18] != '-' || text[23] != '-' {
		return id, false
	}
	var all byte
	for i, at := range uuidDigits {
		high, low := digits[text[at]], digits[text[at+1]]
		id[i], all = high<<4|low, all|high|low
	}
	return id, all <= 0xf
}

// uuidDigits is where in the text of a UUID the two digits of each byte are.
var uuidDigits = [uuidSize]int{0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34}

// parseHash reads a hash of 64 digits.
func parseHash(text string) (hash [hashSize]byte, ok bool) {
	var all byte
	for i := range hash {
		high, low := digits[text[2*i]], digits[text[2*i+1]]
		hash[i], all = high<<4|low, all|high|low
	}
	return hash, all <= 0xf
}

// appendUUID appends the text of a UUID; of no bytes, nothing.
func appendUUID(dst, id []byte) []byte {
	for i, b := range id {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			dst = append(dst, '-')
		}
		dst = append(dst, hexDigits[b>>4], hexDigits[b&0xf])
	}
	return dst
}

const hexDigits = "0123456789abcdef"

// digits has the value of each digit of lower-case hex, and more than any has for all other
// bytes. Whether a digit of a hash is a letter no processor can predict: branches for that
// took most of the time that a record takes to be encoded.
var digits = func() (values [256]byte) {
	for c := range values {
		values[c] = 0xff
	}
	for value, c := range []byte(hexDigits) {
		values[c] = byte(value)
	}
	return values
}()
