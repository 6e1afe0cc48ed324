// Turns a model from one file into another: folder or GGUF, quantised or not, an adapter merged or not, with the account of what became of its tensors.
#include "hub/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/flags.h"
#include "cli/memory.h"
#include "cli/screen.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/json.h"
#include "core/nearest.h"
#include "core/words.h"
#include "evaluate/score.h"
#include "hub/adapter.h"
#include "hub/gguf/quant_mix.h"
#include "hub/named_models.h"
#include "options/common.h"
#include "text/corpus.h"

namespace moe::cli {
namespace {

struct Flags {
  std::string in, out, adapter, quant, dtype, verify;
  MemoryFlags memory;
  ScoreOptions rule{.window = 0};  // of --verify; 0: default_window
  int threads = 0;
  bool json = false;
  Given given;
};

const std::vector<std::string>& dtype_names() {
  static const std::vector<std::string> names = {"f32", "bf16", "f16"};
  return names;
}

std::optional<WantedType> wanted_type(const Flags& f) {
  if (!f.quant.empty() && !f.dtype.empty()) fail_usage("--quant and --dtype both choose the type of the weights; give one of them");
  if (!f.quant.empty()) return find_quant_mix(f.quant, "--quant");
  if (f.dtype.empty()) return std::nullopt;
  const std::optional<DType> dtype = dtype_named(f.dtype);
  if (dtype && is_quantised(*dtype)) fail_usage("{} is a quantised type; ask for it with --quant {}", f.dtype, f.dtype);
  if (!dtype || std::find(dtype_names().begin(), dtype_names().end(), name_of(*dtype)) == dtype_names().end())
    fail_usage("--dtype: no type is called '{}'{}", f.dtype, suggestion(f.dtype, dtype_names()));
  return *dtype;
}

// The text that --verify scores, as tokens of the model.
std::vector<int32_t> read_ids(const std::string& path, const Tokenizer& tokenizer, const ScoreOptions& options) {
  const Corpus corpus({path}, tokenizer);
  std::vector<int32_t> ids(static_cast<size_t>(corpus.size()));
  corpus.fill(0, corpus.size(), ids.data());
  scored_windows(corpus.size(), options);  // fails where there is not one
  return ids;
}

Score scored(LoadedModel& model, const std::vector<int32_t>& ids, const ScoreOptions& options, int threads) {
  ProgressLine progress;
  const std::atomic<bool>& stop = watch_interrupts();
  Run run(threads, DType::f32);
  return score(*model.model, run, *model.tokenizer, ids, options, [&](int64_t done, int64_t total) {
    if (stop) fail("interrupted while scoring; the model is written");
    progress.show(done, total, "windows");
  });
}

void print_account(const ConvertReport& report, const std::string& out) {
  fmt::print("{:>7}  {:<5}  {:>7}  {:<5} {:>10} {:>10}\n", "tensors", "of", "become", "of", "before", "after");
  for (const ConvertedRow& row : report.rows) {
    const std::string example = row.targets == 1 ? row.example : fmt::format("{} ...", row.example);
    fmt::print("{:>7}  {:<5}  {:>7}  {:<5} {:>10} {:>10}  {}\n", row.sources, name_of(row.from), row.targets, name_of(row.to),
               human_bytes(static_cast<double>(row.bytes_before)), human_bytes(static_cast<double>(row.bytes_after)),
               row.why.empty() ? example : fmt::format("{}: {}", example, row.why));
  }
  if (report.aliases > 0) fmt::print("{} more: copies of what is written once\n", counted(report.aliases, "tensor"));
  if (report.quantised_twice > 0)
    fmt::print("note: {} quantised from quantised numbers, which loses more than from the original\n", counted(report.quantised_twice, "tensor"));
  fmt::print("{}: {} read once, {} written once, {} numbers; {} became {}\n", out, counted(report.sources, "tensor"), counted(report.targets, "tensor"),
             human_count(static_cast<double>(report.numbers)), human_bytes(static_cast<double>(report.bytes_before)),
             human_bytes(static_cast<double>(report.bytes_after)));
  if (!report.why_own.empty())
    fmt::print("note: llama.cpp does not run {}: {}; the file has a form of moe's own, which moe reads as any other\n", out, report.why_own);
}

Json conversion_json(const ConvertReport& report) {
  Json rows = Json::array();
  for (const ConvertedRow& row : report.rows)
    rows.push_back({{"from", name_of(row.from)},
                    {"to", name_of(row.to)},
                    {"why", row.why},
                    {"sources", row.sources},
                    {"targets", row.targets},
                    {"bytes_before", row.bytes_before},
                    {"bytes_after", row.bytes_after},
                    {"example", row.example}});
  Json reply = {{"tensors", rows},           {"sources", report.sources},           {"targets", report.targets},        {"aliases", report.aliases},
                {"numbers", report.numbers}, {"bytes_before", report.bytes_before}, {"bytes_after", report.bytes_after}};
  if (!report.why_own.empty()) reply["not_for_llama_cpp"] = report.why_own;
  return reply;
}

Json score_json(const Score& s) { return {{"tokens", s.tokens}, {"nats_per_token", s.nats_per_token}, {"perplexity", s.perplexity}}; }

int run_convert(Flags& f) {
  f.in = find_model(f.in);  // so that OUT can be told from it
  ConvertOptions options{.dtype = wanted_type(f), .threads = thread_count(f.threads)};
  if (options.dtype) check_asked(options.dtype->dtype, target_of(f.out));
  LoadedModel before = load_model(f.in, LoadFor::inference);
  std::optional<MergedAdapter> merged;
  if (!f.adapter.empty()) {
    merged = merge_adapter(before, f.adapter, options.threads);
    if (!f.json)
      fmt::print("adapter {}: added to {} matrices, the largest change {:.2g} of a matrix (norms){}\n", f.adapter, merged->matrices, merged->largest,
                 merged->whole > 0 ? fmt::format("; {} replaced", counted(merged->whole, "tensor")) : "");
  }
  check_convert_target(f.in, f.out, before);
  ScoreOptions rule = f.rule;
  if (rule.window == 0) rule.window = default_window(before.model->config());
  std::vector<int32_t> ids;
  if (!f.verify.empty()) ids = read_ids(f.verify, *before.tokenizer, rule);

  MemoryNeed writing;
  const int64_t wide = converting_bytes(*before.model) / 2;  // as f32, and in its type
  writing.add("writing", wide + (options.dtype ? wide / 1024 * bytes_of(options.dtype->dtype, 256) : wide));
  check_memory(writing, f.memory, "close other programs");
  ConvertReport report;
  {
    ProgressLine progress;
    const std::atomic<bool>& stop = watch_interrupts();
    options.progress = [&](int64_t done, int64_t total) {
      if (stop) fail("interrupted; nothing was written to {}", f.out);
      progress.show(done >> 10, total >> 10, "KiB");
    };
    report = convert_model(before, f.in, f.out, options);
  }
  Json reply = conversion_json(report);
  if (merged) reply["adapter"] = {{"folder", f.adapter}, {"matrices", merged->matrices}, {"replaced", merged->whole}, {"largest_change", merged->largest}};
  if (!f.json) print_account(report, f.out);
  if (!f.verify.empty()) {
    LoadedModel after = load_model(f.out, LoadFor::inference);
    prepare_memory(f.in, scored_in_turn({before.model.get(), after.model.get()}, rule, DType::f32), {}, f.memory,
                   "lower --verify-window or leave --verify out; the model is written");
    const Score first = scored(before, ids, rule, options.threads);
    const Score second = scored(after, read_ids(f.verify, *after.tokenizer, rule), rule, options.threads);
    const double change = second.perplexity / first.perplexity - 1;
    if (!f.json)
      fmt::print("perplexity on {} ({} windows of {}): {:.4f} before, {:.4f} after, {:+.4f} ({:+.2f}%)\n", f.verify, first.windows, rule.window,
                 first.perplexity, second.perplexity, second.perplexity - first.perplexity, 100 * change);
    reply["verify"] = {{"text", f.verify}, {"windows", first.windows}, {"window", rule.window}, {"before", score_json(first)}, {"after", score_json(second)}};
  }
  if (f.json) print_json(reply);
  return 0;
}

std::string quants_help() {
  std::string out = "quantise (GGUF only), by llama.cpp's names: ";
  for (const QuantMix& mix : quant_mixes()) out += fmt::format("{}{} ({})", &mix == quant_mixes().data() ? "" : ", ", mix.name, mix.what);
  return out +
         ". Norms, biases and routers stay f32, the head keeps more bits; where rows are no multiple of a type's block the nearest type that fits is taken, and "
         "printed (docs/quantisation.md)";
}

}  // namespace

Action add_convert(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  FieldList list;
  list.add("IN", f->in, fmt::format("a model: {}", kModelIs)).positional().required();
  list.add("OUT", f->out, "what to write: a GGUF file when the name ends in .gguf, else a folder as Hugging Face lays it out").positional().required();
  list.add("adapter", f->adapter,
           "merge a low-rank adapter into the weights: a folder of adapter_config.json and adapter_model.safetensors as PEFT and moe train --tune lora leave "
           "them. @verify then scores the merged weights before and after the change of type");
  list.add("quant", f->quant, quants_help()).values(quant_mix_names());
  list.add("dtype", f->dtype, "write the weights as f32, bf16 or f16. Default: each as it is, and f32 where a folder cannot hold that").values(dtype_names());
  list.add("verify", f->verify, "a text, or a folder of them: score it before and after, by the rule of windows of moe score, and print both perplexities");
  list.add("verify_windows", f->rule.windows, "at most so many windows of the text; 0: all");
  list.add("verify_window", f->rule.window, "tokens a window; default: 2048, or the model's context where that is shorter").no_default();
  add_threads(list, f->threads);
  add_memory(list, f->memory);
  list.add("json", f->json, "one JSON object on standard output");
  add_flags(app, std::move(list), f->given);
  return [f] {
    for (const char* name : {"verify_windows", "verify_window"})
      if (f->verify.empty() && f->given.has(name)) fail_usage("{} needs a text to score: add --verify TEXT", field(name));
    return run_convert(*f);
  };
}

}  // namespace moe::cli
