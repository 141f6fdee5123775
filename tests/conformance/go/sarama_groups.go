package main

import (
	"context"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

var saramaAssignors = map[string]func() sarama.BalanceStrategy{
	"range": sarama.NewBalanceStrategyRange, "roundrobin": sarama.NewBalanceStrategyRoundRobin,
	"sticky": sarama.NewBalanceStrategySticky, "cooperative-sticky": sarama.NewBalanceStrategyCooperativeSticky,
	"": sarama.NewBalanceStrategyRange,
}

// A member is a handler of sarama's sessions.
type saramaMember struct {
	mu      sync.Mutex
	group   sarama.ConsumerGroup
	session sarama.ConsumerGroupSession
	claimed map[TopicPartition]bool
	records []Record
	stop    context.CancelFunc
	done    chan struct{}
}

func (s *saramaDriver) join(r *Request) (result, error) {
	if r.Protocol == "consumer" {
		return nil, Unsupported("no consumer protocol (KIP-848)")
	}
	settings := s.settings()
	saramaIsolation(settings, r)
	settings.Consumer.Offsets.Initial = sarama.OffsetOldest
	if r.Reset == "latest" {
		settings.Consumer.Offsets.Initial = sarama.OffsetNewest
	}
	settings.Consumer.Offsets.AutoCommit.Enable = r.Commit == "auto"
	settings.Consumer.Offsets.AutoCommit.Interval = 200 * time.Millisecond
	settings.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{saramaAssignors[r.Assignor]()}
	settings.Consumer.Group.Heartbeat.Interval = 200 * time.Millisecond
	settings.Consumer.Group.InstanceId = r.Instance
	if r.SessionMs != 0 {
		settings.Consumer.Group.Session.Timeout = time.Duration(r.SessionMs) * time.Millisecond
	}
	if r.RefreshMs != 0 {
		settings.Metadata.RefreshFrequency = time.Duration(r.RefreshMs) * time.Millisecond
	}
	group, err := sarama.NewConsumerGroup(s.bootstrap, r.Group, settings)
	if err != nil {
		return nil, err
	}
	member := &saramaMember{group: group, claimed: map[TopicPartition]bool{}, done: make(chan struct{})}
	s.members[r.Member] = member
	ctx, stop := context.WithCancel(context.Background())
	member.stop = stop
	go func() {
		defer close(member.done)
		for ctx.Err() == nil {
			if err := group.Consume(ctx, r.Topics, member); err != nil {
				time.Sleep(100 * time.Millisecond)
			}
		}
	}()
	return nil, nil
}

func (m *saramaMember) Setup(session sarama.ConsumerGroupSession) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.session = session
	return nil
}

func (m *saramaMember) Cleanup(sarama.ConsumerGroupSession) error { return nil }

// holds says whether a partition is ours: a cooperative session gains and loses them one by one.
func (m *saramaMember) holds(claim sarama.ConsumerGroupClaim, isOurs bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if isOurs {
		m.claimed[TopicPartition{claim.Topic(), claim.Partition()}] = true
	} else {
		delete(m.claimed, TopicPartition{claim.Topic(), claim.Partition()})
	}
}

func (m *saramaMember) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	m.holds(claim, true)
	defer m.holds(claim, false)
	for {
		select {
		case message, isOpen := <-claim.Messages():
			if !isOpen {
				return nil
			}
			m.mu.Lock()
			m.records = append(m.records, saramaRecord(message))
			m.mu.Unlock()
			session.MarkMessage(message, "")
		case <-session.Context().Done():
			return nil
		}
	}
}

func (m *saramaMember) leave() {
	m.stop()
	<-m.done
	m.group.Close() //nolint:errcheck // it has left
}

func (s *saramaDriver) member(r *Request) (result, error) {
	member := s.members[r.Member]
	member.mu.Lock()
	defer member.mu.Unlock()
	assigned := []TopicPartition{}
	for topicPartition := range member.claimed {
		assigned = append(assigned, topicPartition)
	}
	return result{"assigned": assigned, "records": append([]Record{}, member.records...)}, nil
}

func (s *saramaDriver) commit(r *Request) (result, error) {
	s.members[r.Member].session.Commit()
	return nil, nil
}

func (s *saramaDriver) leave(r *Request) (result, error) {
	s.members[r.Member].leave()
	delete(s.members, r.Member)
	return nil, nil
}

// ---- transactions --------------------------------------------------------------------------------------------

func (s *saramaDriver) open(r *Request) (result, error) {
	settings := s.settings()
	settings.Producer.Idempotent = true
	settings.Producer.Compression = saramaCodecs[r.Codec]
	settings.Producer.Transaction.ID = r.TxnID
	settings.Producer.Transaction.Timeout = time.Duration(r.TimeoutMs) * time.Millisecond
	settings.Net.MaxOpenRequests = 1
	producer, err := sarama.NewSyncProducer(s.bootstrap, settings)
	if err != nil {
		return nil, err
	}
	s.producers[r.Producer] = producer
	return nil, nil
}

func (s *saramaDriver) begin(r *Request) (result, error) {
	return nil, s.producers[r.Producer].BeginTxn()
}

func (s *saramaDriver) send(r *Request) (result, error) {
	return saramaSend(s.producers[r.Producer], r)
}

func (s *saramaDriver) sendOffsets(r *Request) (result, error) {
	var offsets []*sarama.PartitionOffsetMetadata
	for partition, offset := range r.Offsets {
		offsets = append(offsets, &sarama.PartitionOffsetMetadata{Partition: partition, Offset: offset, LeaderEpoch: -1})
	}
	wanted := map[string][]*sarama.PartitionOffsetMetadata{r.Topic: offsets}
	return nil, s.producers[r.Producer].AddOffsetsToTxn(wanted, r.Group)
}

func (s *saramaDriver) commitTransaction(r *Request) (result, error) {
	return nil, s.producers[r.Producer].CommitTxn()
}

func (s *saramaDriver) abortTransaction(r *Request) (result, error) {
	return nil, s.producers[r.Producer].AbortTxn()
}
