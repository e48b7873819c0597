// What transformers.js makes of an exported folder, as JSON: node other_programs.mjs FOLDER bi|cross|int8
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";

const js = createRequire(process.cwd() + "/")("@huggingface/transformers");
const [folder, tower] = process.argv.slice(2);
const { texts, others } = JSON.parse(readFileSync(0));
Object.assign(js.env, { allowRemoteModels: false, allowLocalModels: true, localModelPath: path.dirname(folder) + "/" });
const name = path.basename(folder);
const options = { dtype: tower === "int8" ? "q8" : "fp32", device: "cpu" };
const tokenizer = await js.AutoTokenizer.from_pretrained(name);
const answers = {};
if (tower === "cross") {
  const model = await js.AutoModelForSequenceClassification.from_pretrained(name, options);
  const tokens = await tokenizer(texts, { text_pair: others, padding: true, truncation: true });
  answers.classifier = (await model(tokens)).logits.tolist().map(([logit]) => logit);
  answers.model = (await (await js.AutoModel.from_pretrained(name, options))(tokens)).scores.tolist().flat();
} else {
  const model = await js.AutoModel.from_pretrained(name, options);
  const tokens = await tokenizer(texts, { padding: true, truncation: true });
  answers.model = (await model(tokens)).sentence_embedding.normalize(2, -1).tolist();
  const pipeline = await js.pipeline("feature-extraction", name, options);
  answers.pipeline = (await pipeline(texts, { pooling: "mean", normalize: true })).tolist();
}
console.log(JSON.stringify(answers));
