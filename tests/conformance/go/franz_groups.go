package main

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

var franzAssignors = map[string]func() kgo.GroupBalancer{
	"range": kgo.RangeBalancer, "roundrobin": kgo.RoundRobinBalancer, "sticky": kgo.StickyBalancer,
	"cooperative-sticky": kgo.CooperativeStickyBalancer, "": kgo.RangeBalancer,
}

func (f *franz) join(r *Request) (result, error) {
	member := &franzMember{assigned: map[TopicPartition]bool{}, done: make(chan struct{})}
	reset := kgo.NewOffset().AtStart()
	if r.Reset == "latest" {
		reset = kgo.NewOffset().AtEnd()
	}
	options := []kgo.Opt{
		kgo.ConsumerGroup(r.Group),
		kgo.ConsumeTopics(r.Topics...),
		kgo.ConsumeResetOffset(reset),
		kgo.FetchIsolationLevel(isolationOf(r)),
		kgo.Balancers(franzAssignors[r.Assignor]()),
		kgo.HeartbeatInterval(200 * time.Millisecond),
		kgo.OnPartitionsAssigned(member.gains),
		kgo.OnPartitionsRevoked(member.loses),
		kgo.OnPartitionsLost(member.loses),
	}
	if r.Protocol == "consumer" {
		options = append(options, kgo.ServerSideBalancer())
	}
	if r.SessionMs != 0 {
		options = append(options, kgo.SessionTimeout(time.Duration(r.SessionMs)*time.Millisecond))
	}
	if r.RefreshMs != 0 {
		age := time.Duration(r.RefreshMs) * time.Millisecond
		options = append(options, kgo.MetadataMaxAge(age), kgo.MetadataMinAge(age/2))
	}
	if r.Instance != "" {
		options = append(options, kgo.InstanceID(r.Instance))
	}
	if r.TxnID != "" {
		return nil, f.joinInSession(r, member, options)
	}
	if r.Commit == "auto" {
		options = append(options, kgo.AutoCommitInterval(200*time.Millisecond))
	} else {
		options = append(options, kgo.DisableAutoCommit())
	}
	client, err := f.newClient(options...)
	if err != nil {
		return nil, err
	}
	f.members[r.Member] = member
	member.start(client, client.PollFetches)
	return nil, nil
}

// joinInSession is for members whose offsets are committed by a transaction: one client is both.
func (f *franz) joinInSession(r *Request, member *franzMember, options []kgo.Opt) error {
	options = append(options, f.connection...)
	options = append(options, kgo.TransactionalID(r.TxnID), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	session, err := kgo.NewGroupTransactSession(options...)
	if err != nil {
		return err
	}
	f.members[r.Member] = member
	f.producers[r.Producer] = &franzProducer{session.Client(), session, member}
	member.start(session.Client(), session.PollFetches)
	return nil
}

func (m *franzMember) start(client *kgo.Client, poll func(context.Context) kgo.Fetches) {
	m.client = client
	ctx, stop := context.WithCancel(context.Background())
	m.stop = stop
	go func() {
		defer close(m.done)
		for ctx.Err() == nil {
			polled := poll(ctx)
			m.mu.Lock()
			polled.EachRecord(func(record *kgo.Record) { m.records = append(m.records, franzRecord(record)) })
			m.mu.Unlock()
		}
	}()
}

func (m *franzMember) gains(_ context.Context, _ *kgo.Client, gained map[string][]int32) {
	m.set(gained, true)
}

func (m *franzMember) loses(_ context.Context, _ *kgo.Client, lost map[string][]int32) {
	m.set(lost, false)
}

func (m *franzMember) set(positions map[string][]int32, isOurs bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for topic, partitions := range positions {
		for _, partition := range partitions {
			if isOurs {
				m.assigned[TopicPartition{topic, partition}] = true
			} else {
				delete(m.assigned, TopicPartition{topic, partition})
			}
		}
	}
}

func (m *franzMember) leave() {
	m.stop()
	<-m.done
	m.client.Close()
}

func (f *franz) member(r *Request) (result, error) {
	member := f.members[r.Member]
	member.mu.Lock()
	defer member.mu.Unlock()
	assigned := []TopicPartition{}
	for topicPartition := range member.assigned {
		assigned = append(assigned, topicPartition)
	}
	return result{"assigned": assigned, "records": append([]Record{}, member.records...)}, nil
}

func (f *franz) commit(r *Request) (result, error) {
	return nil, f.members[r.Member].client.CommitUncommittedOffsets(inTime())
}

func (f *franz) leave(r *Request) (result, error) {
	f.members[r.Member].leave()
	delete(f.members, r.Member)
	return nil, nil
}

// ---- transactions --------------------------------------------------------------------------------------------

func (f *franz) open(r *Request) (result, error) {
	if _, isThere := f.producers[r.Producer]; isThere {
		return nil, nil
	}
	client, err := f.newClient(
		kgo.TransactionalID(r.TxnID),
		kgo.TransactionTimeout(time.Duration(r.TimeoutMs)*time.Millisecond),
		kgo.ProducerBatchCompression(franzCodecs[r.Codec]),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)
	if err != nil {
		return nil, err
	}
	f.producers[r.Producer] = &franzProducer{client: client}
	_, _, err = client.ProducerID(inTime())
	return nil, err
}

func (f *franz) begin(r *Request) (result, error) {
	producer := f.producers[r.Producer]
	if producer.session != nil {
		return nil, producer.session.Begin()
	}
	return nil, producer.client.BeginTransaction()
}

func (f *franz) send(r *Request) (result, error) {
	return franzSend(f.producers[r.Producer].client, r)
}

// sendOffsets: a session commits what was polled; so wait until that is what the suite wants.
func (f *franz) sendOffsets(r *Request) (result, error) {
	producer := f.producers[r.Producer]
	for ctx := inTime(); ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		polled := producer.client.UncommittedOffsets()[r.Topic]
		isThere := true
		for partition, offset := range r.Offsets {
			isThere = isThere && polled[partition].Offset >= offset
		}
		if isThere {
			return nil, nil
		}
	}
	return nil, Refused{"timed out", "the records were not polled again"}
}

func (f *franz) end(r *Request, how kgo.TransactionEndTry) (result, error) {
	producer := f.producers[r.Producer]
	if producer.session == nil {
		return nil, producer.client.EndTransaction(inTime(), how)
	}
	isCommitted, err := producer.session.End(inTime(), how)
	if err == nil && isCommitted != bool(how) {
		err = Refused{"aborted", "the session aborted instead of committing"}
	}
	return nil, err
}

func (f *franz) commitTransaction(r *Request) (result, error) { return f.end(r, kgo.TryCommit) }
func (f *franz) abortTransaction(r *Request) (result, error)  { return f.end(r, kgo.TryAbort) }
