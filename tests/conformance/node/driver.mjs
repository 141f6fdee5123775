// A driver's side of the conversation of the conformance suite: lines of JSON in and out.
// The format and the verbs: ../suite/steps.py.

import { createInterface } from 'node:readline'

export class Unsupported extends Error {}

export class Refused extends Error {
  constructor(code, message) {
    super(message)
    this.code = code
  }
}

// Verbs are functions by name; connect is called before the first one, and again if it failed; refusalOf says what an error of the client means: { code, message }.
export async function serve(verbs, connect, refusalOf) {
  let isConnected = false
  const connected = async () => {
    if (!isConnected) await connect()
    isConnected = true
  }
  for await (const line of createInterface({ input: process.stdin, crlfDelay: Infinity })) {
    const request = JSON.parse(line)
    process.stdout.write(JSON.stringify(await answer(verbs[request.verb], request, connected, refusalOf)) + '\n')
  }
  await verbs.reset({})
  process.exit(0)
}

async function answer(verb, request, connect, refusalOf) {
  if (verb === undefined) return { unsupported: 'the client has no such call' }
  try {
    await connect()
    return { told: (await verb(request)) ?? {} }
  } catch (error) {
    if (error instanceof Unsupported) return { unsupported: error.message }
    if (error instanceof Refused) return { refused: error.code, message: error.message }
    const { code, message } = refusalOf(error)
    return { refused: code, message }
  }
}

export const decoded = (text) => (text === null ? null : Buffer.from(text, 'base64'))
export const encoded = (data) => (data === null || data === undefined ? null : Buffer.from(data).toString('base64'))
