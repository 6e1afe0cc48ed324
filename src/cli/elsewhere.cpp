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
    {"--batch-size", "--batch"},
    {"--bf16", "--dtype bf16"},
    {"--block-size", "--context"},
    {"--ctx-size", "--context"},
    {"--dataset", "--data"},
    {"--epochs", "--steps (each of --batch x --context x --accumulate tokens)"},
    {"--eval-steps", "--eval-every"},
    {"--gpu-layers", "--device cuda"},
    {"--gradient-accumulation-steps", "--accumulate"},
    {"--gradient-checkpointing", "--recompute"},
    {"--hf-repo", "MODEL"},
    {"--hidden-size", "--width"},
    {"--learning-rate", "--lr"},
    {"--lora", "--adapter"},
    {"--lr-scheduler-type", "--schedule"},
    {"--max-grad-norm", "--clip"},
    {"--max-iters", "--steps"},
    {"--max-length", "--tokens"},
    {"--max-new-tokens", "--tokens"},
    {"--max-steps", "--steps"},
    {"--max-tokens", "--tokens"},
    {"--model", "--from"},
    {"--model", "MODEL"},
    {"--model-name-or-path", "--from"},
    {"--model-name-or-path", "MODEL"},
    {"--n-embd", "--width"},
    {"--n-gpu-layers", "--device cuda"},
    {"--n-head", "--heads"},
    {"--n-layer", "--layers"},
    {"--n-predict", "--tokens"},
    {"--num-attention-heads", "--heads"},
    {"--num-experts", "--experts"},
    {"--num-experts-per-tok", "--top-k"},
    {"--num-hidden-layers", "--layers"},
    {"--num-layers", "--layers"},
    {"--num-predict", "--tokens"},
    {"--num-train-epochs", "--steps (each of --batch x --context x --accumulate tokens)"},
    {"--outfile", "OUT"},
    {"--output", "--out"},
    {"--output-dir", "--out"},
    {"--outtype", "--dtype, or --quant where it is q8_0"},
    {"--per-device-train-batch-size", "--batch"},
    {"--resume-from-checkpoint", "--resume"},
    {"--save-steps", "--save-every"},
    {"--system-prompt", "--system"},
    {"--warmup-steps", "--warmup"},
    {"-a", "--name"},
    {"-c", "--context"},
    {"-ctk", "--cache-dtype"},
    {"-ctv", "--cache-dtype"},
    {"-hf", "MODEL"},
    {"-m", "MODEL"},
    {"-ngl", "--device cuda"},
    {"-np", "--parallel"},
    {"-o", "--out"},
    {"-s", "--seed"},
    {"-sys", "--system"},
    {"-t", "--threads"},
};

constexpr Row kVerbs[] = {
    {"cli", "moe generate, moe chat"},
    {"complete", "moe generate"},
    {"download", "moe get"},
    {"eval", "moe score"},
    {"evaluate", "moe score"},
    {"export-lora", "moe convert MODEL OUT --adapter DIR"},
    {"finetune", "moe train --from MODEL"},
    {"gguf-split", "moe convert MODEL OUT.gguf --split-size 4G"},
    {"imatrix", "moe convert MODEL OUT.gguf --quant TYPE --calibration TEXT --save-imatrix FILE"},
    {"list", "moe get"},
    {"ls", "moe get"},
    {"perplexity", "moe score"},
    {"pull", "moe get"},
    {"quantise", "moe convert MODEL OUT.gguf --quant TYPE"},
    {"quantize", "moe convert MODEL OUT.gguf --quant TYPE"},
    {"rm", "moe get --remove NAME"},
    {"run", "moe generate, moe chat"},
    {"server", "moe serve"},
    {"show", "moe inspect"},
    {"version", "moe --version"},
};

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
  return suggestion(plain, known, 0);
}

bool is_word_elsewhere(std::string_view given) {
  return given.size() > 2 && given[0] == '-' && given[1] != '-' &&
         std::any_of(std::begin(kFlags), std::end(kFlags),
                     [&](const Row& row) { return row.first == given; });
}

std::string suggested_for_word(std::string_view verb) {
  for (const auto& [name, flag] : kWords)
    if (name == verb) return fmt::format("; is it meant for {}?", flag);
  return "";
}

std::string_view verb_here(std::string_view theirs) {
  for (const auto& [name, ours] : kVerbs)
    if (name == theirs) return ours;
  return "";
}

}  // namespace moe::cli
