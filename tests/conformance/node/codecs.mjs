// The codecs that kafkajs leaves to others.

import kafkajs from 'kafkajs'
import snappy from 'kafkajs-snappy'
import lz4 from 'lz4js'
import zstd from 'zstd-codec'

const simple = await new Promise((resolve) => zstd.ZstdCodec.run((codec) => resolve(new codec.Simple())))
const { CompressionCodecs, CompressionTypes } = kafkajs

export function addCodecs() {
  CompressionCodecs[CompressionTypes.Snappy] = snappy
  CompressionCodecs[CompressionTypes.LZ4] = () => ({
    compress: async (encoder) => Buffer.from(lz4.compress(encoder.buffer)),
    decompress: async (buffer) => Buffer.from(lz4.decompress(buffer))
  })
  CompressionCodecs[CompressionTypes.ZSTD] = () => ({
    compress: async (encoder) => Buffer.from(simple.compress(encoder.buffer)),
    decompress: async (buffer) => Buffer.from(simple.decompress(buffer))
  })
}
