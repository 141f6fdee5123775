// The codecs that kafkajs leaves to others.

import kafkajs from 'kafkajs'
import snappy from 'kafkajs-snappy'
import lz4 from 'lz4-napi'
import zstd from 'zstd-codec'

// The streaming one, because a frame need not say how long its content is.
const stream = await new Promise((resolve) => zstd.ZstdCodec.run((codec) => resolve(new codec.Streaming())))
const { CompressionCodecs, CompressionTypes } = kafkajs

export function addCodecs() {
  CompressionCodecs[CompressionTypes.Snappy] = snappy
  CompressionCodecs[CompressionTypes.LZ4] = () => ({
    compress: async (encoder) => lz4.compressFrame(encoder.buffer),
    decompress: async (buffer) => lz4.decompressFrame(buffer)
  })
  CompressionCodecs[CompressionTypes.ZSTD] = () => ({
    compress: async (encoder) => Buffer.from(stream.compress(encoder.buffer)),
    decompress: async (buffer) => Buffer.from(stream.decompress(buffer))
  })
}
