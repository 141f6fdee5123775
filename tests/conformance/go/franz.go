package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

type franz struct {
	connection []kgo.Opt
	admin      *kadm.Client
	members    map[string]*franzMember
	producers  map[string]*franzProducer
}

// A member polls in a goroutine of its own.
type franzMember struct {
	mu       sync.Mutex
	client   *kgo.Client
	assigned map[TopicPartition]bool
	records  []Record
	stop     context.CancelFunc
	done     chan struct{}
}

// A producer stands alone, or in one session with a member.
type franzProducer struct {
	client  *kgo.Client
	session *kgo.GroupTransactSession
	member  *franzMember
}

func newFranz(bootstrap string, security Security) Driver {
	connection := []kgo.Opt{kgo.SeedBrokers(bootstrap)}
	if config := security.tls(); config != nil {
		connection = append(connection, kgo.DialTLSConfig(config))
	}
	switch security.Mechanism {
	case "PLAIN":
		connection = append(connection, kgo.SASL(plain.Auth{User: security.User, Pass: security.Password}.AsMechanism()))
	case "SCRAM-SHA-256":
		connection = append(connection, kgo.SASL(scram.Auth{User: security.User, Pass: security.Password}.AsSha256Mechanism()))
	case "SCRAM-SHA-512":
		connection = append(connection, kgo.SASL(scram.Auth{User: security.User, Pass: security.Password}.AsSha512Mechanism()))
	}
	client, err := kgo.NewClient(connection...)
	if err != nil {
		panic(err)
	}
	return &franz{connection, kadm.NewClient(client), map[string]*franzMember{}, map[string]*franzProducer{}}
}

func (f *franz) newClient(options ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append(options, f.connection...)...)
}

// Connect does nothing: the client connects by itself.
func (f *franz) Connect() error { return nil }

func (f *franz) Verbs() map[string]func(*Request) (result, error) {
	return map[string]func(*Request) (result, error){
		"hello": f.hello, "reset": f.reset,
		"create_topic": f.createTopic, "delete_topic": f.deleteTopic, "list_topics": f.listTopics,
		"describe_topic": f.describeTopic, "create_partitions": f.createPartitions,
		"describe_configs": f.describeConfigs, "alter_configs": f.alterConfigs,
		"describe_cluster": f.describeCluster, "cluster_id": f.clusterID, "delete_records": f.deleteRecords, "list_offsets": f.listOffsets,
		"list_groups": f.listGroups, "describe_group": f.describeGroup, "delete_group": f.deleteGroup,
		"committed": f.committed, "alter_offsets": f.alterOffsets, "delete_offsets": f.deleteOffsets,
		"produce": f.produce, "consume": f.consume,
		"join": f.join, "member": f.member, "commit": f.commit, "leave": f.leave,
		"open": f.open, "begin": f.begin, "send": f.send, "send_offsets": f.sendOffsets,
		"commit_transaction": f.commitTransaction, "abort_transaction": f.abortTransaction,
	}
}

func (f *franz) Refusal(err error) Refused {
	var coded *kerr.Error
	if errors.As(err, &coded) {
		return Refused{coded.Code, err.Error()}
	}
	if isCertificateError(err) {
		return Refused{"certificate", err.Error()}
	}
	return Refused{"error", err.Error()}
}

func (f *franz) hello(*Request) (result, error) {
	return result{"version": version("github.com/twmb/franz-go")}, nil
}

func (f *franz) reset(*Request) (result, error) {
	for name := range f.members {
		f.members[name].leave()
	}
	for _, producer := range f.producers {
		if producer.session == nil {
			producer.client.Close()
		}
	}
	f.members, f.producers = map[string]*franzMember{}, map[string]*franzProducer{}
	return nil, nil
}

func inTime() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	context.AfterFunc(ctx, cancel)
	return ctx
}

// ---- administration ------------------------------------------------------------------------------------------

func (f *franz) createTopic(r *Request) (result, error) {
	configs := map[string]*string{}
	for name, value := range r.Configs {
		configs[name] = &value
	}
	_, err := f.admin.CreateTopic(inTime(), int32(r.Count), -1, configs, r.Topic)
	return nil, err
}

func (f *franz) deleteTopic(r *Request) (result, error) {
	_, err := f.admin.DeleteTopic(inTime(), r.Topic)
	return nil, err
}

func (f *franz) listTopics(*Request) (result, error) {
	topics, err := f.admin.ListTopics(inTime())
	return result{"topics": topics.Names()}, err
}

func (f *franz) describeTopic(r *Request) (result, error) {
	topics, err := f.admin.ListTopics(inTime(), r.Topic)
	return result{"partitions": len(topics[r.Topic].Partitions)}, err
}

func (f *franz) createPartitions(r *Request) (result, error) {
	made, err := f.admin.UpdatePartitions(inTime(), r.Count, r.Topic)
	if err == nil {
		err = made.Error()
	}
	return nil, err
}

func (f *franz) describeConfigs(r *Request) (result, error) {
	var described kadm.ResourceConfigs
	var err error
	if r.Kind == "topic" {
		described, err = f.admin.DescribeTopicConfigs(inTime(), r.Name)
	} else {
		described, err = f.admin.DescribeBrokerConfigs(inTime(), int32(r.Name[0]-'0'))
	}
	if err != nil {
		return nil, err
	}
	configs := map[string]*string{}
	for _, config := range described[0].Configs {
		configs[config.Key] = config.Value
	}
	return result{"configs": configs}, described[0].Err
}

func (f *franz) alterConfigs(r *Request) (result, error) {
	var changes []kadm.AlterConfig
	for name, value := range r.Set {
		changes = append(changes, kadm.AlterConfig{Op: kadm.SetConfig, Name: name, Value: &value})
	}
	for _, name := range r.Delete {
		changes = append(changes, kadm.AlterConfig{Op: kadm.DeleteConfig, Name: name})
	}
	altered, err := f.admin.AlterTopicConfigs(inTime(), changes, r.Name)
	if err == nil {
		err = altered[0].Err
	}
	return nil, err
}

func (f *franz) describeCluster(*Request) (result, error) {
	cluster, err := f.admin.BrokerMetadata(inTime())
	return result{"controller": cluster.Controller, "brokers": cluster.Brokers.NodeIDs()}, err
}

func (f *franz) clusterID(*Request) (result, error) {
	cluster, err := f.admin.BrokerMetadata(inTime())
	return result{"id": cluster.Cluster}, err
}

func (f *franz) deleteRecords(r *Request) (result, error) {
	var before kadm.Offsets
	before.AddOffset(r.Topic, r.Partition, r.Before, -1)
	deleted, err := f.admin.DeleteRecords(inTime(), before)
	if err != nil {
		return nil, err
	}
	return nil, deleted[r.Topic][r.Partition].Err
}

func (f *franz) listOffsets(r *Request) (result, error) {
	var listed kadm.ListedOffsets
	var err error
	switch {
	case r.At == "earliest":
		listed, err = f.admin.ListStartOffsets(inTime(), r.Topic)
	case r.At == "time":
		listed, err = f.admin.ListOffsetsAfterMilli(inTime(), r.Time, r.Topic)
	case r.Isolation == "read_committed":
		listed, err = f.admin.ListCommittedOffsets(inTime(), r.Topic)
	default:
		listed, err = f.admin.ListEndOffsets(inTime(), r.Topic)
	}
	if err != nil {
		return nil, err
	}
	found := listed[r.Topic][r.Partition]
	if r.At == "time" && found.Timestamp == -1 {
		return result{"offset": -1}, found.Err // kadm gives the end where no record is as late as that
	}
	return result{"offset": found.Offset}, found.Err
}

func (f *franz) listGroups(*Request) (result, error) {
	groups, err := f.admin.ListGroups(inTime())
	return result{"groups": groups.Groups()}, err
}

func (f *franz) describeGroup(r *Request) (result, error) {
	consumer, err := f.admin.DescribeConsumerGroups(inTime(), r.Group)
	if err == nil && consumer[r.Group].Err == nil {
		return result{"state": consumer[r.Group].State, "members": len(consumer[r.Group].Members)}, nil
	}
	described, err := f.admin.DescribeGroups(inTime(), r.Group)
	if err != nil {
		return nil, err
	}
	group := described[r.Group]
	return result{"state": group.State, "members": len(group.Members)}, group.Err
}

func (f *franz) deleteGroup(r *Request) (result, error) {
	_, err := f.admin.DeleteGroup(inTime(), r.Group)
	return nil, err
}

func (f *franz) committed(r *Request) (result, error) {
	fetched, err := f.admin.FetchOffsets(inTime(), r.Group)
	offsets := map[int32]int64{}
	for partition, offset := range fetched[r.Topic] {
		offsets[partition] = offset.At
	}
	return result{"offsets": offsets}, err
}

func (f *franz) alterOffsets(r *Request) (result, error) {
	var wanted kadm.Offsets
	for partition, offset := range r.Offsets {
		wanted.AddOffset(r.Topic, partition, offset, -1)
	}
	return nil, f.admin.CommitAllOffsets(inTime(), r.Group, wanted)
}

func (f *franz) deleteOffsets(r *Request) (result, error) {
	var gone kadm.TopicsSet
	gone.Add(r.Topic, r.Partitions...)
	deleted, err := f.admin.DeleteOffsets(inTime(), r.Group, gone)
	if err == nil {
		err = deleted.Error()
	}
	return nil, err
}

// ---- records -------------------------------------------------------------------------------------------------

var franzCodecs = map[string]kgo.CompressionCodec{
	"": kgo.NoCompression(), "none": kgo.NoCompression(), "gzip": kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
}

func (f *franz) produce(r *Request) (result, error) {
	options := []kgo.Opt{
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(franzCodecs[r.Codec]),
		kgo.ProducerBatchMaxBytes(2_000_000),
	}
	if r.AutoCreate {
		options = append(options, kgo.AllowAutoTopicCreation())
	}
	if r.Acks == "0" {
		options = append(options, kgo.RequiredAcks(kgo.NoAck()))
	} else if r.Acks == "1" {
		options = append(options, kgo.RequiredAcks(kgo.LeaderAck()))
	}
	if !r.Idempotent {
		options = append(options, kgo.DisableIdempotentWrite())
	}
	client, err := f.newClient(options...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return franzSend(client, r)
}

func franzSend(client *kgo.Client, r *Request) (result, error) {
	var records []*kgo.Record
	for _, record := range r.Records {
		one := &kgo.Record{
			Topic: r.Topic, Partition: record.Partition, Key: bytesOf(record.Key), Value: bytesOf(record.Value),
		}
		for _, header := range record.Headers {
			one.Headers = append(one.Headers, kgo.RecordHeader{Key: header.Name, Value: header.Value})
		}
		if record.Timestamp != nil {
			one.Timestamp = time.UnixMilli(*record.Timestamp)
		}
		records = append(records, one)
	}
	err := client.ProduceSync(inTime(), records...).FirstErr()
	offsets := []int64{}
	for _, record := range records {
		offsets = append(offsets, record.Offset)
	}
	return result{"offsets": offsets}, err
}

func franzRecord(record *kgo.Record) Record {
	headers := []Header{}
	for _, header := range record.Headers {
		headers = append(headers, Header{header.Key, header.Value})
	}
	ms := record.Timestamp.UnixMilli()
	return Record{
		record.Partition, record.Offset, &ms, fieldOf(record.Key), fieldOf(record.Value), headers,
	}
}

func isolationOf(r *Request) kgo.IsolationLevel {
	if r.Isolation == "read_committed" {
		return kgo.ReadCommitted()
	}
	return kgo.ReadUncommitted()
}

func (f *franz) consume(r *Request) (result, error) {
	start := kgo.NewOffset().AtStart()
	if r.Offset != nil {
		start = kgo.NewOffset().At(*r.Offset)
	}
	positions := map[int32]kgo.Offset{}
	for _, partition := range r.Partitions {
		positions[partition] = start
	}
	client, err := f.newClient(
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{r.Topic: positions}),
		kgo.FetchIsolationLevel(isolationOf(r)),
	)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	found := []Record{}
	ctx := inTime()
	for len(found) < r.Count && ctx.Err() == nil {
		polled := client.PollRecords(ctx, r.Count-len(found))
		if err := polled.Err(); errors.Is(err, kerr.TopicAuthorizationFailed) {
			return nil, err
		}
		polled.EachRecord(func(record *kgo.Record) { found = append(found, franzRecord(record)) })
	}
	return result{"records": found}, nil
}
