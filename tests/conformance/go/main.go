// Go's clients behind the verbs of the conformance suite: `driver CLIENT HOST:PORT [SECURITY]`, lines of JSON in and out.
// The format and the verbs: ../suite/steps.py.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"
)

const wait = 30 * time.Second

// Request holds the arguments of every verb.
type Request struct {
	Verb       string            `json:"verb"`
	Topic      string            `json:"topic"`
	Topics     []string          `json:"topics"`
	Count      int               `json:"count"`
	Configs    map[string]string `json:"configs"`
	Kind       string            `json:"kind"`
	Name       string            `json:"name"`
	Set        map[string]string `json:"set"`
	Delete     []string          `json:"delete"`
	Partition  int32             `json:"partition"`
	Partitions []int32           `json:"partitions"`
	Before     int64             `json:"before"`
	At         string            `json:"at"`
	Time       int64             `json:"time"`
	Isolation  string            `json:"isolation"`
	Group      string            `json:"group"`
	Offsets    map[int32]int64   `json:"offsets"`
	Offset     *int64            `json:"offset"`
	Records    []Record          `json:"records"`
	Codec      string            `json:"codec"`
	Acks       string            `json:"acks"`
	Idempotent bool              `json:"idempotent"`
	AutoCreate bool              `json:"auto_create"`
	Member     string            `json:"member"`
	Protocol   string            `json:"protocol"`
	Assignor   string            `json:"assignor"`
	Instance   string            `json:"instance"`
	Reset      string            `json:"reset"`
	Commit     string            `json:"commit"`
	SessionMs  int64             `json:"session_ms"`
	RefreshMs  int64             `json:"refresh_ms"`
	Producer   string            `json:"producer"`
	TxnID      string            `json:"transactional_id"`
	TimeoutMs  int64             `json:"timeout_ms"`
}

// Record is one record on the wire of the suite; bytes are base64 there, and null where there are none.
type Record struct {
	Partition int32    `json:"partition"`
	Offset    int64    `json:"offset"`
	Timestamp *int64   `json:"timestamp"`
	Key       *[]byte  `json:"key"`
	Value     *[]byte  `json:"value"`
	Headers   []Header `json:"headers"`
}

// Header is a name and its bytes, which may be missing.
type Header struct {
	Name  string
	Value []byte
}

func (h *Header) UnmarshalJSON(data []byte) error {
	return json.Unmarshal(data, &[]any{&h.Name, &h.Value})
}
func (h Header) MarshalJSON() ([]byte, error) { return json.Marshal([]any{h.Name, h.Value}) }

func bytesOf(field *[]byte) []byte {
	if field == nil {
		return nil
	}
	if *field == nil {
		return []byte{}
	}
	return *field
}

func fieldOf(data []byte) *[]byte {
	if data == nil {
		return nil
	}
	return &data
}

// TopicPartition is a topic and a partition, as the suite writes them.
type TopicPartition struct {
	Topic     string
	Partition int32
}

func (p TopicPartition) MarshalJSON() ([]byte, error) {
	return json.Marshal([]any{p.Topic, p.Partition})
}

type result map[string]any

// Unsupported is what a client cannot be asked.
type Unsupported string

func (u Unsupported) Error() string { return string(u) }

// Refused is an error with the broker's code (a number) or the client's own name of it.
type Refused struct {
	Code    any
	Message string
}

func (r Refused) Error() string { return fmt.Sprint(r.Code, ": ", r.Message) }

// Driver is one client.
type Driver interface {
	// Connect is called before every verb.
	Connect() error
	// Verbs by their names; what is missing is unsupported.
	Verbs() map[string]func(*Request) (result, error)
	// Refusal is what an error of the client means.
	Refusal(err error) Refused
}

func answer(driver Driver, line []byte) map[string]any {
	var request Request
	if err := json.Unmarshal(line, &request); err != nil {
		panic(err)
	}
	verb, found := driver.Verbs()[request.Verb]
	if !found {
		return map[string]any{"unsupported": "the client has no such call"}
	}
	var seen result
	err := driver.Connect()
	if err == nil {
		seen, err = verb(&request)
	}
	var unsupported Unsupported
	switch {
	case errors.As(err, &unsupported):
		return map[string]any{"unsupported": string(unsupported)}
	case err != nil:
		refused := driver.Refusal(err)
		return map[string]any{"refused": refused.Code, "message": refused.Message}
	case seen == nil:
		seen = result{}
	}
	return map[string]any{"told": seen}
}

// version is what this program was built with.
func version(module string) string {
	info, _ := debug.ReadBuildInfo()
	for _, dependency := range info.Deps {
		if dependency.Path == module {
			return strings.TrimPrefix(dependency.Version, "v")
		}
	}
	return "unknown"
}

func main() {
	drivers := map[string]func(string, Security) Driver{
		"franz-go": newFranz, "sarama": newSarama,
	}
	var security Security
	if len(os.Args) > 3 {
		if err := json.Unmarshal([]byte(os.Args[3]), &security); err != nil {
			panic(err)
		}
	}
	driver := drivers[os.Args[1]](os.Args[2], security)
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := json.NewEncoder(os.Stdout)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			break
		}
		if err := out.Encode(answer(driver, line)); err != nil {
			panic(err)
		}
	}
	if _, err := driver.Verbs()["reset"](&Request{}); err != nil {
		panic(err)
	}
}
