// What Netron shows of a model as metadata: its own reader, without a browser. Usage: node read.mjs FOLDER MODEL
import { readFileSync } from 'node:fs';
const folder = process.argv[2];
const onnx = await import(`${folder}/onnx.js`);
await import(`${folder}/base.js`);
const protobuf = await import(`${folder}/protobuf.js`);
const data = new Uint8Array(readFileSync(process.argv[3]));
const stream = { length: data.length, peek: (n) => data.subarray(0, n ?? data.length), seek: () => {}, position: 0 };
const context = {
    identifier: 'model.onnx', stream, type: 'onnx.proto', tags: async () => new Map(),
    peek: async () => null,
    set(type, value) { this.value = value; return type; },
    require: (name) => import(`${folder}/${name.replace('./', '')}.js`),
    read: async () => protobuf.BinaryReader.open(data),
    asset: async (name) => readFileSync(`${folder}/${name}`, 'utf-8'),
    error: (error) => { throw error; }, metadata: new Map(), entries: new Map(),
};
const factory = new onnx.ModelFactory();
await factory.match(context);
const model = await factory.open(context);
const pairs = (list) => Object.fromEntries((list || []).map((each) => [each.name, each.value]));
const graph = model.modules[0];
console.log(JSON.stringify({
    model: pairs(model.metadata),
    nodes: graph.nodes.map((node) => [node.name, pairs(node.metadata)]),
    inputs: graph.inputs.map((input) => [input.name, pairs(input.value[0].metadata)]),
}));
