package main

import (
	"errors"
	"time"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
)

type saramaDriver struct {
	bootstrap []string
	security  Security
	admin     sarama.ClusterAdmin
	members   map[string]*saramaMember
	producers map[string]sarama.SyncProducer
}

func newSarama(bootstrap string, security Security) Driver {
	return &saramaDriver{
		bootstrap: []string{bootstrap}, security: security,
		members: map[string]*saramaMember{}, producers: map[string]sarama.SyncProducer{},
	}
}

// Connect makes the admin client.
func (s *saramaDriver) Connect() error {
	if s.admin != nil {
		return nil
	}
	admin, err := sarama.NewClusterAdmin(s.bootstrap, s.settings())
	if err == nil {
		s.admin = admin
	}
	return err
}

func (s *saramaDriver) settings() *sarama.Config {
	settings := sarama.NewConfig()
	settings.Version = sarama.MaxVersion
	settings.Metadata.AllowAutoTopicCreation = false
	settings.Producer.Return.Successes = true
	settings.Producer.Partitioner = sarama.NewManualPartitioner
	settings.Producer.MaxMessageBytes = 2_000_000
	settings.Producer.RequiredAcks = sarama.WaitForAll
	if config := s.security.tls(); config != nil {
		settings.Net.TLS.Enable, settings.Net.TLS.Config = true, config
	}
	if s.security.Mechanism != "" {
		settings.Net.SASL.Enable = true
		settings.Net.SASL.Mechanism = sarama.SASLMechanism(s.security.Mechanism)
		settings.Net.SASL.User, settings.Net.SASL.Password = s.security.User, s.security.Password
		hash := scram.SHA256
		if s.security.Mechanism == sarama.SASLTypeSCRAMSHA512 {
			hash = scram.SHA512
		}
		settings.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &scramClient{hash: hash} }
	}
	return settings
}

func (s *saramaDriver) Verbs() map[string]func(*Request) (result, error) {
	return map[string]func(*Request) (result, error){
		"hello": s.hello, "reset": s.reset,
		"create_topic": s.createTopic, "delete_topic": s.deleteTopic, "list_topics": s.listTopics,
		"describe_topic": s.describeTopic, "create_partitions": s.createPartitions,
		"describe_configs": s.describeConfigs, "alter_configs": s.alterConfigs,
		"describe_cluster": s.describeCluster, "delete_records": s.deleteRecords, "list_offsets": s.listOffsets,
		"list_groups": s.listGroups, "describe_group": s.describeGroup, "delete_group": s.deleteGroup,
		"committed": s.committed, "alter_offsets": s.alterOffsets, "delete_offsets": s.deleteOffsets,
		"produce": s.produce, "consume": s.consume,
		"join": s.join, "member": s.member, "commit": s.commit, "leave": s.leave,
		"open": s.open, "begin": s.begin, "send": s.send, "send_offsets": s.sendOffsets,
		"commit_transaction": s.commitTransaction, "abort_transaction": s.abortTransaction,
	}
}

func (s *saramaDriver) Refusal(err error) Refused {
	var several sarama.ProducerErrors
	if errors.As(err, &several) && len(several) > 0 {
		err = several[0].Err
	}
	var coded sarama.KError
	if errors.As(err, &coded) {
		return Refused{int16(coded), err.Error()}
	}
	var topic *sarama.TopicError
	if errors.As(err, &topic) {
		return Refused{int16(topic.Err), err.Error()}
	}
	var partitions *sarama.TopicPartitionError
	if errors.As(err, &partitions) {
		return Refused{int16(partitions.Err), err.Error()}
	}
	if errors.Is(err, sarama.ErrSASLAuthenticationFailed) {
		return Refused{"authentication", err.Error()}
	}
	if isCertificateError(err) {
		return Refused{"certificate", err.Error()}
	}
	return Refused{"error", err.Error()}
}

func (s *saramaDriver) hello(*Request) (result, error) {
	return result{"version": version("github.com/IBM/sarama")}, nil
}

func (s *saramaDriver) reset(*Request) (result, error) {
	for _, member := range s.members {
		member.leave()
	}
	for _, producer := range s.producers {
		producer.Close() //nolint:errcheck // a fenced producer has nothing left to say
	}
	s.members, s.producers = map[string]*saramaMember{}, map[string]sarama.SyncProducer{}
	return nil, nil
}

// ---- administration ------------------------------------------------------------------------------------------

func (s *saramaDriver) createTopic(r *Request) (result, error) {
	configs := map[string]*string{}
	for name, value := range r.Configs {
		configs[name] = &value
	}
	detail := &sarama.TopicDetail{NumPartitions: int32(r.Count), ReplicationFactor: -1, ConfigEntries: configs}
	return nil, s.admin.CreateTopic(r.Topic, detail, false)
}

func (s *saramaDriver) deleteTopic(r *Request) (result, error) {
	return nil, s.admin.DeleteTopic(r.Topic)
}

func (s *saramaDriver) listTopics(*Request) (result, error) {
	topics, err := s.admin.ListTopics()
	names := []string{}
	for name := range topics {
		names = append(names, name)
	}
	return result{"topics": names}, err
}

func (s *saramaDriver) describeTopic(r *Request) (result, error) {
	described, err := s.admin.DescribeTopics([]string{r.Topic})
	if err != nil {
		return nil, err
	}
	return result{"partitions": len(described[0].Partitions)}, nil
}

func (s *saramaDriver) createPartitions(r *Request) (result, error) {
	return nil, s.admin.CreatePartitions(r.Topic, int32(r.Count), nil, false)
}

func saramaKind(kind string) sarama.ConfigResourceType {
	if kind == "topic" {
		return sarama.TopicResource
	}
	return sarama.BrokerResource
}

func (s *saramaDriver) describeConfigs(r *Request) (result, error) {
	described, err := s.admin.DescribeConfig(sarama.ConfigResource{Type: saramaKind(r.Kind), Name: r.Name})
	configs := map[string]string{}
	for _, config := range described {
		configs[config.Name] = config.Value
	}
	return result{"configs": configs}, err
}

func (s *saramaDriver) alterConfigs(r *Request) (result, error) {
	changes := map[string]sarama.IncrementalAlterConfigsEntry{}
	for name, value := range r.Set {
		changes[name] = sarama.IncrementalAlterConfigsEntry{Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &value}
	}
	for _, name := range r.Delete {
		changes[name] = sarama.IncrementalAlterConfigsEntry{Operation: sarama.IncrementalAlterConfigsOperationDelete}
	}
	return nil, s.admin.IncrementalAlterConfig(saramaKind(r.Kind), r.Name, changes, false)
}

func (s *saramaDriver) describeCluster(*Request) (result, error) {
	brokers, controller, err := s.admin.DescribeCluster()
	ids := []int32{}
	for _, broker := range brokers {
		ids = append(ids, broker.ID())
	}
	return result{"controller": controller, "brokers": ids}, err
}

func (s *saramaDriver) deleteRecords(r *Request) (result, error) {
	return nil, s.admin.DeleteRecords(r.Topic, map[int32]int64{r.Partition: r.Before})
}

func (s *saramaDriver) listOffsets(r *Request) (result, error) {
	when := map[string]int64{"earliest": sarama.OffsetOldest, "latest": sarama.OffsetNewest, "time": r.Time}[r.At]
	options := &sarama.ListOffsetsOptions{}
	if r.Isolation == "read_committed" {
		options.IsolationLevel = sarama.ReadCommitted
	}
	listed, err := s.admin.ListOffsets(map[string]map[int32]int64{r.Topic: {r.Partition: when}}, options)
	if err != nil {
		return nil, err
	}
	return result{"offset": listed[r.Topic][r.Partition].Offset}, nil
}

func (s *saramaDriver) listGroups(*Request) (result, error) {
	groups, err := s.admin.ListConsumerGroups()
	names := []string{}
	for name := range groups {
		names = append(names, name)
	}
	return result{"groups": names}, err
}

func (s *saramaDriver) describeGroup(r *Request) (result, error) {
	described, err := s.admin.DescribeConsumerGroups([]string{r.Group})
	if err != nil {
		return nil, err
	}
	return result{"state": described[0].State, "members": len(described[0].Members)}, nil
}

func (s *saramaDriver) deleteGroup(r *Request) (result, error) {
	return nil, s.admin.DeleteConsumerGroup(r.Group)
}

func (s *saramaDriver) committed(r *Request) (result, error) {
	fetched, err := s.admin.ListConsumerGroupOffsets(r.Group, nil)
	if err != nil {
		return nil, err
	}
	offsets := map[int32]int64{}
	for partition, block := range fetched.Blocks[r.Topic] {
		offsets[partition] = block.Offset
	}
	return result{"offsets": offsets}, nil
}

func (s *saramaDriver) alterOffsets(r *Request) (result, error) {
	wanted := map[int32]sarama.OffsetAndMetadata{}
	for partition, offset := range r.Offsets {
		wanted[partition] = sarama.OffsetAndMetadata{Offset: offset, LeaderEpoch: -1}
	}
	_, err := s.admin.AlterConsumerGroupOffsets(r.Group, map[string]map[int32]sarama.OffsetAndMetadata{r.Topic: wanted}, nil)
	return nil, err
}

func (s *saramaDriver) deleteOffsets(r *Request) (result, error) {
	for _, partition := range r.Partitions {
		if err := s.admin.DeleteConsumerGroupOffset(r.Group, r.Topic, partition); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// ---- records -------------------------------------------------------------------------------------------------

var saramaCodecs = map[string]sarama.CompressionCodec{
	"": sarama.CompressionNone, "none": sarama.CompressionNone, "gzip": sarama.CompressionGZIP,
	"snappy": sarama.CompressionSnappy, "lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD,
}

func (s *saramaDriver) produce(r *Request) (result, error) {
	settings := s.settings()
	settings.Producer.Compression = saramaCodecs[r.Codec]
	settings.Metadata.AllowAutoTopicCreation = r.AutoCreate
	if r.Acks == "0" {
		settings.Producer.RequiredAcks = sarama.NoResponse
	} else if r.Acks == "1" {
		settings.Producer.RequiredAcks = sarama.WaitForLocal
	}
	if r.Idempotent {
		settings.Producer.Idempotent = true
		settings.Net.MaxOpenRequests = 1
	}
	producer, err := sarama.NewSyncProducer(s.bootstrap, settings)
	if err != nil {
		return nil, err
	}
	defer producer.Close() //nolint:errcheck // all was acknowledged
	return saramaSend(producer, r)
}

func saramaSend(producer sarama.SyncProducer, r *Request) (result, error) {
	var messages []*sarama.ProducerMessage
	for _, record := range r.Records {
		message := &sarama.ProducerMessage{Topic: r.Topic, Partition: record.Partition}
		if key := bytesOf(record.Key); key != nil {
			message.Key = sarama.ByteEncoder(key)
		}
		if value := bytesOf(record.Value); value != nil {
			message.Value = sarama.ByteEncoder(value)
		}
		for _, header := range record.Headers {
			message.Headers = append(message.Headers, sarama.RecordHeader{Key: []byte(header.Name), Value: header.Value})
		}
		if record.Timestamp != nil {
			message.Timestamp = time.UnixMilli(*record.Timestamp)
		}
		messages = append(messages, message)
	}
	err := producer.SendMessages(messages)
	offsets := []int64{}
	for _, message := range messages {
		offsets = append(offsets, message.Offset)
	}
	return result{"offsets": offsets}, err
}

func saramaRecord(message *sarama.ConsumerMessage) Record {
	headers := []Header{}
	for _, header := range message.Headers {
		headers = append(headers, Header{string(header.Key), header.Value})
	}
	ms := message.Timestamp.UnixMilli()
	return Record{message.Partition, message.Offset, &ms, fieldOf(message.Key), fieldOf(message.Value), headers}
}

func saramaIsolation(settings *sarama.Config, r *Request) {
	if r.Isolation == "read_committed" {
		settings.Consumer.IsolationLevel = sarama.ReadCommitted
	}
}

func (s *saramaDriver) consume(r *Request) (result, error) {
	settings := s.settings()
	saramaIsolation(settings, r)
	settings.Consumer.Return.Errors = true
	consumer, err := sarama.NewConsumer(s.bootstrap, settings)
	if err != nil {
		return nil, err
	}
	defer consumer.Close() //nolint:errcheck // nothing was committed
	start := sarama.OffsetOldest
	if r.Offset != nil {
		start = *r.Offset
	}
	messages := make(chan *sarama.ConsumerMessage)
	denied := make(chan error, len(r.Partitions))
	stop := make(chan struct{})
	defer close(stop)
	for _, partition := range r.Partitions {
		reader, err := consumer.ConsumePartition(r.Topic, partition, start)
		if err != nil {
			return nil, err
		}
		defer reader.AsyncClose()
		go func() {
			for failure := range reader.Errors() {
				if errors.Is(failure, sarama.ErrTopicAuthorizationFailed) {
					select {
					case denied <- failure:
					default:
					}
				}
			}
		}()
		go func() {
			for message := range reader.Messages() {
				select {
				case messages <- message:
				case <-stop:
					return
				}
			}
		}()
	}
	found := []Record{}
	for timeout := time.After(wait); len(found) < r.Count; {
		select {
		case message := <-messages:
			found = append(found, saramaRecord(message))
		case err := <-denied:
			return nil, err
		case <-timeout:
			return result{"records": found}, nil
		}
	}
	return result{"records": found}, nil
}
