#include "cli/elsewhere.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/nearest.h"

namespace moe::cli {
namespace {

using Row = std::pair<std::string_view, std::string_view>;

// Ours begins with the flag that it is about. Several rows of a flag: that of the verb counts.
constexpr Row kFlags[] = {
    {"--alias", "--name"},
    {"--allowed-origins", "--cors"},
    {"--aux-loss-coef", "--balance"},
    {"--batch-size", "--batch"},
    {"--bf16", "--dtype bf16"},
    {"--block-size", "--context"},
    {"--cache-type-k", "--cache-dtype"},
    {"--cache-type-v", "--cache-dtype"},
    {"--chunks", "--windows"},
    {"--ctx-size", "--context"},
    {"--ctx-size", "--window"},
    {"--data", "--text"},
    {"--dataset", "--data"},
    {"--dataset", "--text"},
    {"--draft-max", "--draft-tokens"},
    {"--draft-n", "--draft-tokens"},
    {"--epochs", "--steps (each of --batch x --context x --accumulate tokens)"},
    {"--eval-file", "--eval-data"},
    {"--eval-interval", "--eval-every"},
    {"--eval-steps", "--eval-every"},
    {"--file", "--data"},
    {"--file", "--text"},
    {"--gpu-layers", "--device cuda"},
    {"--gpu-memory-utilization", "--memory, in bytes as in 30G"},
    {"--grad-clip", "--clip"},
    {"--gradient-accumulation-steps", "--accumulate"},
    {"--gradient-checkpointing", "--recompute"},
    {"--hf-repo", "MODEL"},
    {"--hidden-size", "--width"},
    {"--init-from", "--from, or --resume"},
    {"--learning-rate", "--lr"},
    {"--lora", "--adapter"},
    {"--lora-modules", "--adapter, as in NAME=PATH"},
    {"--lr-decay-iters", "--steps"},
    {"--lr-scheduler-type", "--schedule"},
    {"--max-grad-norm", "--clip"},
    {"--max-iters", "--steps"},
    {"--max-length", "--tokens"},
    {"--max-model-len", "--context"},
    {"--max-new-tokens", "--tokens"},
    {"--max-num-seqs", "--parallel"},
    {"--max-seq-length", "--context"},
    {"--max-steps", "--steps"},
    {"--max-tokens", "--tokens"},
    {"--micro-batch-size", "--batch"},
    {"--model", "--from"},
    {"--model", "MODEL"},
    {"--model-draft", "--draft"},
    {"--model-name-or-path", "--from"},
    {"--model-name-or-path", "MODEL"},
    {"--n-embd", "--width"},
    {"--n-gpu-layers", "--device cuda"},
    {"--n-head", "--heads"},
    {"--n-layer", "--layers"},
    {"--n-predict", "--tokens"},
    {"--n-routed-experts", "--experts"},
    {"--num-attention-heads", "--heads"},
    {"--num-ctx", "--context"},
    {"--num-experts", "--experts"},
    {"--num-experts-per-tok", "--top-k"},
    {"--num-hidden-layers", "--layers"},
    {"--num-layers", "--layers"},
    {"--num-local-experts", "--experts"},
    {"--num-predict", "--tokens"},
    {"--num-samples", "--samples"},
    {"--num-train-epochs", "--steps (each of --batch x --context x --accumulate tokens)"},
    {"--out-dir", "--out"},
    {"--outfile", "OUT"},
    {"--output", "--out"},
    {"--output-dir", "--out"},
    {"--outtype", "--dtype, or --quant where it is q8_0"},
    {"--per-device-train-batch-size", "--batch"},
    {"--perf", "--show-speed"},
    {"--quantization", "--quant"},
    {"--resume-from-checkpoint", "--resume"},
    {"--reverse-prompt", "--stop"},
    {"--router-aux-loss-coef", "--balance"},
    {"--router-z-loss-coef", "--z-loss"},
    {"--save-steps", "--save-every"},
    {"--seq-len", "--context"},
    {"--seq-length", "--context"},
    {"--served-model-name", "--name"},
    {"--speculative-model", "--draft"},
    {"--start", "--prompt"},
    {"--system-prompt", "--system"},
    {"--timeout", "--max-seconds"},
    {"--timings", "--show-speed"},
    {"--train-file", "--data"},
    {"--validation-file", "--eval-data"},
    {"--verbose", "--show-speed"},
    {"--warmup-iters", "--warmup"},
    {"--warmup-steps", "--warmup"},
    {"-a", "--name"},
    {"-c", "--context"},
    {"-c", "--window"},
    {"-ctk", "--cache-dtype"},
    {"-ctv", "--cache-dtype"},
    {"-f", "--data"},
    {"-f", "--text"},
    {"-hf", "MODEL"},
    {"-m", "MODEL"},
    {"-md", "--draft"},
    {"-ngl", "--device cuda"},
    {"-np", "--parallel"},
    {"-o", "--out"},
    {"-r", "--stop"},
    {"-s", "--seed"},
    {"-sys", "--system"},
    {"-t", "--threads"},
    {"-V", "--version"},
    {"-v", "--version"},
    {"-v", "--show-speed"},
};

// What has no counterpart because nothing has to be asked for, and why.
constexpr const char* kDialogues = "moe chat holds dialogues";
constexpr const char* kFigures = "moe bench MODEL tells how fast a model is";
constexpr const char* kMapped = "files are always mapped";
constexpr const char* kOneAttention = "there is no other attention to choose";
constexpr const char* kRoom = "room is made for what is asked for";
constexpr const char* kSchemas = "moe serve holds a reply to a schema, by response_format";
constexpr const char* kStepLines = "each step is a line of OUT/metrics.jsonl";
constexpr const char* kTemplate = "the chat template that the model comes with is run";
constexpr const char* kTogether = "requests are always computed together";
constexpr const char* kTracked =
    "tools/metrics_to_tensorboard.py OUT --wandb PROJECT sends metrics";
constexpr Row kNeedless[] = {
    {"--compile", "all of it is compiled"},
    {"--cont-batching", kTogether},
    {"--conversation", kDialogues},
    {"--ctx-size", kRoom},
    {"--do-sample", "above a --temperature of 0 tokens are drawn"},
    {"--flash-attn", kOneAttention},
    {"--grammar", kSchemas},
    {"--interactive", kDialogues},
    {"--jinja", kTemplate},
    {"--json-schema", kSchemas},
    {"--log-interval", kStepLines},
    {"--logging-steps", kStepLines},
    {"--metrics", "GET /metrics is always there"},
    {"--mlock", kMapped},
    {"--no-mmap", kMapped},
    {"--num-ctx", kRoom},
    {"--perf", kFigures},
    {"--report-to", kTracked},
    {"--stream", "text is shown as it is written"},
    {"--timings", kFigures},
    {"--trust-remote-code", "no code of a model is run"},
    {"--verbose", kFigures},
    {"--wandb-log", kTracked},
    {"-c", kRoom},
    {"-cb", kTogether},
    {"-cnv", kDialogues},
    {"-fa", kOneAttention},
    {"-i", kDialogues},
    {"-v", kFigures},
};

constexpr Row kVerbs[] = {
    {"analyse", "moe inspect MODEL --text TEXT"},
    {"analyze", "moe inspect MODEL --text TEXT"},
    {"bench", "moe bench"},
    {"benchmark", "moe bench"},
    {"cli", "moe generate, moe chat"},
    {"complete", "moe generate"},
    {"convert-hf-to-gguf", "moe convert MODEL OUT.gguf"},
    {"download", "moe get"},
    {"dpo", "moe train --from MODEL --data PAIRS.jsonl"},
    {"eval", "moe score"},
    {"evaluate", "moe score"},
    {"export", "moe convert MODEL OUT.gguf"},
    {"export-lora", "moe convert MODEL OUT --adapter DIR"},
    {"finetune", "moe train --from MODEL"},
    {"gguf-split", "moe convert MODEL OUT.gguf --split-size 4G"},
    {"imatrix", "moe convert MODEL OUT.gguf --quant TYPE --calibration TEXT --save-imatrix FILE"},
    {"infer", "moe generate"},
    {"info", "moe inspect"},
    {"list", "moe get"},
    {"lora", "moe train --from MODEL --tune lora"},
    {"ls", "moe get"},
    {"models", "moe get"},
    {"perplexity", "moe score"},
    {"predict", "moe generate"},
    {"prepare", "moe tokenize, or moe train as the text is"},
    {"pretrain", "moe train"},
    {"pull", "moe get"},
    {"quantise", "moe convert MODEL OUT.gguf --quant TYPE"},
    {"quantize", "moe convert MODEL OUT.gguf --quant TYPE"},
    {"report", "moe inspect MODEL --text TEXT --html PAGE"},
    {"resume", "moe train --resume --out OUT"},
    {"rm", "moe get --remove NAME"},
    {"run", "moe generate, moe chat"},
    {"sample", "moe generate"},
    {"server", "moe serve"},
    {"sft", "moe train --from MODEL"},
    {"show", "moe inspect"},
    {"version", "moe --version"},
};

// llama.cpp's programs are called so: llama-cli, llama-quantize.
constexpr std::string_view kFamily = "llama-";

// What a word behind the verb, or behind its MODEL, is most likely to be.
constexpr Row kWords[] = {
    {"compare", "--text"}, {"convert", "--quant"}, {"generate", "--prompt"}, {"inspect", "--text"},
    {"score", "--text"},   {"tokenize", "--data"}, {"train", "--data"},
};

}  // namespace

std::string suggested_flag(const std::string& given, const std::vector<std::string>& known) {
  std::string plain = given.substr(0, given.find('='));
  std::replace(plain.begin(), plain.end(), '_', '-');
  for (const auto& [theirs, ours] : kFlags) {
    const std::string_view flag = ours.substr(0, ours.find_first_of(" ,"));
    if (plain != theirs || std::find(known.begin(), known.end(), flag) == known.end()) continue;
    if (!flag.starts_with('-')) return fmt::format("; {} stands without a flag", flag);
    return fmt::format("; moe calls it {}", ours);
  }
  for (const auto& [theirs, why] : kNeedless)
    if (plain == theirs) return fmt::format("; leave it out: {}", why);
  return suggestion(plain, known, 0);
}

bool is_word_elsewhere(std::string_view given) {
  const auto is_given = [&](const Row& row) { return row.first == given; };
  return given.size() > 2 && given[0] == '-' && given[1] != '-' &&
         (std::any_of(std::begin(kFlags), std::end(kFlags), is_given) ||
          std::any_of(std::begin(kNeedless), std::end(kNeedless), is_given));
}

std::string suggested_for_word(std::string_view verb) {
  for (const auto& [name, flag] : kWords)
    if (name == verb) return fmt::format("; is it meant for {}?", flag);
  return "";
}

std::string_view verb_here(std::string_view theirs) {
  std::string plain(theirs.substr(theirs.starts_with(kFamily) ? kFamily.size() : 0));
  if (plain.ends_with(".py")) plain.resize(plain.size() - 3);
  std::replace(plain.begin(), plain.end(), '_', '-');
  for (const auto& [name, ours] : kVerbs)
    if (name == plain) return ours;
  return "";
}

}  // namespace moe::cli
