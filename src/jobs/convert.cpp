#include "jobs/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "convert/input_products.h"
#include "core/error.h"
#include "core/nearest.h"
#include "core/words.h"
#include "hub/adapter_gguf.h"
#include "hub/gguf/gguf_architectures.h"
#include "hub/gguf/gguf_model.h"
#include "hub/gguf/quant_mix.h"
#include "hub/named_models.h"
#include "jobs/run_options.h"

namespace moe {
namespace {

const std::vector<std::string>& written_dtypes() {
  static const std::vector<std::string> names = {"f32", "bf16", "f16"};
  return names;
}

std::optional<WantedType> wanted_type(const ConvertJob& job) {
  if (!job.quant.empty() && !job.dtype.empty())
    fail_usage("@quant and @dtype both choose the type of the weights; give one of them");
  if (!job.quant.empty()) return find_quant_mix(job.quant, field("quant"));
  if (job.dtype.empty()) return std::nullopt;
  const std::optional<DType> dtype = dtype_named(job.dtype);
  if (dtype && is_quantised(*dtype))
    fail_usage("{} is a quantised type; ask for it with @quant {}", job.dtype, job.dtype);
  if (!dtype || std::find(written_dtypes().begin(), written_dtypes().end(), name_of(*dtype)) ==
                    written_dtypes().end())
    fail_usage("@dtype: no type is called '{}'{}", job.dtype,
               suggestion(job.dtype, written_dtypes()));
  return *dtype;
}

Json account_json(const ConvertReport& report) {
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
  Json reply = {{"tensors", rows},
                {"sources", report.sources},
                {"targets", report.targets},
                {"aliases", report.aliases},
                {"numbers", report.numbers},
                {"bytes_before", report.bytes_before},
                {"bytes_after", report.bytes_after}};
  if (report.files.size() > 1) reply["files"] = report.files;
  if (!report.why_own.empty()) reply["not_for_llama_cpp"] = report.why_own;
  if (!report.notes.empty()) reply["notes"] = report.notes;
  return reply;
}

Json importance_json(const MeasuredImportance& measured, const ConvertReport& report) {
  Json layers = Json::array();
  for (const LayerRows& layer : report.expert_rows)
    layers.push_back({{"layer", layer.layer}, {"rows", layer.rows}});
  Json reply = {{"from", measured.from},
                {"weighed", report.weighed},
                {"compensated", report.compensated},
                {"not_weighed", report.not_weighed},
                {"expert_rows", layers}};
  if (measured.perplexity) reply["perplexity"] = *measured.perplexity;
  return reply;
}

Json verified_json(const Score& s) {
  return {{"tokens", s.tokens}, {"nats_per_token", s.nats_per_token}, {"perplexity", s.perplexity}};
}

std::string quantising_help() {
  std::string out = "quantise (GGUF only), by llama.cpp's names: ";
  for (const QuantMix& mix : quant_mixes())
    out += fmt::format("{}{} ({})", &mix == quant_mixes().data() ? "" : ", ", mix.name, mix.what);
  return out +
         ". Norms, biases and routers stay f32, the head keeps more bits; where rows are no "
         "multiple of a type's block the nearest type that fits is taken, and "
         "printed (docs/quantisation.md)";
}

// The folder OUT, made before the work begins, goes again where nothing comes into it.
class MadeFolder {
 public:
  explicit MadeFolder(std::string path)
      : path_(std::move(path)), was_there_(std::filesystem::exists(path_, ignored_)) {}
  ~MadeFolder() {
    if (!was_there_ && std::filesystem::is_directory(path_, ignored_))
      std::filesystem::remove(path_, ignored_);  // only if it is empty
  }
  MadeFolder(const MadeFolder&) = delete;
  MadeFolder& operator=(const MadeFolder&) = delete;

 private:
  std::error_code ignored_;
  std::string path_;
  bool was_there_;
};

}  // namespace

FieldList fields(ConvertJob& job) {
  FieldList list;
  list.add("IN", job.in, fmt::format("a model: {}", kModelIs)).positional().required();
  list.add("OUT", job.out,
           "what to write: a GGUF file when the name ends in .gguf, else a folder as Hugging Face "
           "lays it out")
      .positional()
      .required();
  list.add("adapter", job.adapter,
           "merge a low-rank adapter into the weights: a folder of adapter_config.json and "
           "adapter_model.safetensors as PEFT and moe train @tune lora leave them, or a .gguf as "
           "llama.cpp takes it. @verify then scores the merged weights before and after the change "
           "of type");
  list.add(
      "adapter_only", job.adapter_only,
      "write no model but the adapter alone, IN's own where IN is an adapter's folder: a .gguf "
      "that llama.cpp takes as its --lora, and @adapter here");
  list.add("quant", job.quant, quantising_help()).values(quant_mix_names());
  list.add("dtype", job.dtype,
           "write the weights as f32, bf16 or f16. Default: each as it is, and f32 where a folder "
           "cannot hold that")
      .values(written_dtypes());
  list.add(fields(job.importance));
  list.add("split_size", bytes_of(job.split_size, "split_size"),
           "write a GGUF as several files, NAME-00001-of-00003.gguf and so on, of at most so many "
           "bytes of tensors each, as in 4G; the first one's name opens all. Default: one file");
  list.add("text_only", job.text_only,
           "leave out what IN has beside the language model of text: layers that predict further "
           "tokens, towers for pictures or sound. Without it such a model is refused");
  list.add("verify", job.verify,
           "a text, or a folder of them: score it before and after, by the rule of windows of moe "
           "score, and print both perplexities");
  list.add("verify_windows", job.rule.windows, "at most so many windows of the text; 0: all");
  list.add("verify_window", job.rule.window,
           "tokens a window; default: 2048, or the model's context where that is shorter")
      .no_default();
  add_threads(list, job.threads);
  add_memory(list, job.memory);
  return list;
}

void check_given(const ConvertJob& job, const Given& given) {
  for (const char* name : {"verify_windows", "verify_window"})
    if (job.verify.empty() && given.has(name))
      fail_usage("{} needs a text to score: add @verify TEXT", field(name));
  if (job.adapter_only) {
    if (target_of(job.out) == Target::folder)
      fail_usage("@adapter_only writes a GGUF file; give OUT a name that ends in .gguf");
    for (const char* name : {"quant", "dtype", "split_size", "verify", "calibration", "imatrix"})
      if (given.has(name)) fail_usage("{} is of a model; @adapter_only writes none", field(name));
  }
  check_given(job.importance, given);
  const std::string& imatrix = job.importance.save_imatrix;
  if (!imatrix.empty() && place_of(imatrix) == place_of(job.out))
    fail_usage("@save_imatrix {} is OUT, which would replace it; choose another name for one",
               imatrix);
  if (job.importance.asked() && job.quant.empty())
    fail_usage("{} weighs the errors of quantising; add @quant",
               field(job.importance.imatrix.empty() ? "calibration" : "imatrix"));
  if (given.has("split_size") && target_of(job.out) == Target::folder)
    fail_usage("@split_size is of GGUF files; give OUT a name that ends in .gguf");
}

namespace {

void tell_replacing(const std::string& path, const Watch& watch) {
  watch.tell(fmt::format("note: replacing {}", path));
}

ConvertReply convert_adapter(const ConvertJob& job, const Watch& watch) {
  const std::string in = find_model(job.in);
  const bool is_in = is_adapter(in);
  if (is_in && !job.adapter.empty())
    fail_usage("{} is an adapter itself; leave @adapter out", job.in);
  if (!is_in && job.adapter.empty())
    fail_usage("{} is a model without an adapter; name one with @adapter", job.in);
  const LoadedModel model = open_model(is_in ? adapter_base(in) : in, job.memory.limits, {},
                                       job.text_only ? BesideText::leave_out : BesideText::refuse);
  const AttachedAdapter attached = attach_adapter(*model.model, is_in ? in : job.adapter, 1);
  if (attached.whole > 0)
    fail(
        "{}: the adapter brings {} whole (routers, say), which a GGUF adapter cannot say; merge it "
        "into the model instead",
        is_in ? in : job.adapter, counted(attached.whole, "tensor"));
  const AdapterFile file = adapter_on(*model.model);
  if (std::error_code unseen; std::filesystem::exists(job.out, unseen)) {
    if (!is_gguf_adapter(job.out))
      fail("{} is there and is no adapter; it is not replaced by one", job.out);
    if (std::filesystem::equivalent(job.out, is_in ? in : job.adapter, unseen))
      fail("{} is the adapter itself; choose another name for the result", job.out);
    tell_replacing(job.out, watch);
  }
  save_gguf_adapter(job.out, *model.model, file);
  return {.adapter = job.adapter,
          .adapter_alone = WrittenAdapter{static_cast<int64_t>(file.matrices.size()), file.rank,
                                          gguf_form_of(model.model->config()).why_own}};
}

}  // namespace

ConvertReply convert_model(const ConvertJob& job, const Watch& watch,
                           const ConvertCallbacks& callbacks) {
  if (job.adapter_only) return convert_adapter(job, watch);
  const std::string in = find_model(job.in);  // so that OUT can be told from it
  ConvertOptions options{.dtype = wanted_type(job),
                         .threads = thread_count(job.threads),
                         .file_bytes = job.split_size.value_or(0)};
  if (options.dtype) check_asked(options.dtype->dtype, target_of(job.out));
  LoadedModel before = open_model(in, job.memory.limits, {},
                                  job.text_only ? BesideText::leave_out : BesideText::refuse);
  ConvertReply reply{.adapter = job.adapter, .left_out = before.left_out};
  for (const Beside& beside : reply.left_out) callbacks.on_left_out(beside);
  if (!job.adapter.empty()) {
    reply.merged = {attach_adapter(*before.model, job.adapter, options.threads),
                    largest_term(*before.model)};
    callbacks.on_merged(*reply.merged);
  }
  const MadeFolder made(job.out);
  check_convert_target(in, job.out, before);
  std::optional<VerifyText> text;
  if (!job.verify.empty()) text = read_verify(job.verify, before, job.rule, "verify_window");
  if (job.importance.asked()) {
    reply.importance = find_importance(job.importance, before, in, text ? &*text : nullptr,
                                       options.threads, job.memory, watch);
    options.importance = &reply.importance->importance;
    options.importance_from = reply.importance->from;
    options.shares = reply.importance->shares.get();
    callbacks.on_importance(*reply.importance);
  }

  MemoryNeed writing;
  const int64_t wide = converting_bytes(*before.model) / 2;  // as f32, and in its type
  writing.add("writing",
              wide + (options.dtype ? wide / 1024 * bytes_of(options.dtype->dtype, 256) : wide));
  if (options.shares != nullptr)
    writing.add("making errors good", error_shares_bytes(*before.model));
  check_memory(writing, job.memory, "close other programs", watch);
  {
    const Progress progress = watch.begin();
    const auto check = [&] {
      if (watch.stopped()) fail("interrupted; nothing was written to {}", job.out);
    };
    check();
    options.progress = [&](int64_t done, int64_t total) {
      check();
      progress(done >> 10, total >> 10, "KiB");
    };
    options.replacing = [&](const std::string& path) { tell_replacing(path, watch); };
    reply.account = convert_model(before, in, job.out, options);
  }
  callbacks.on_written(reply.account);
  if (!text) return reply;
  const std::vector<std::string>& files = reply.account.files;
  LoadedModel after = open_model(files.empty() ? job.out : files[0], job.memory.limits);
  prepare_memory(
      in, scored_in_turn({before.model.get(), after.model.get()}, text->rule, DType::f32), {},
      job.memory, marked("lower @verify_window or leave @verify out; the model is written"), watch);
  const auto scored = [&](LoadedModel& model, const VerifyText& own) {
    return score_verify(*model.model, *model.tokenizer, own, options.threads, "windows",
                        "the model is written", watch);
  };
  Score first = scored(before, *text);
  Score second = scored(after, read_verify(job.verify, after, text->rule, "verify_window"));
  reply.verified = {std::move(*text), std::move(first), std::move(second)};
  return reply;
}

Json to_json(const ConvertReply& r) {
  if (r.adapter_alone)
    return {{"matrices", r.adapter_alone->matrices},
            {"rank", r.adapter_alone->rank},
            {"not_for_llama_cpp", r.adapter_alone->why_own}};
  Json reply = account_json(r.account);
  for (const Beside& b : r.left_out)
    reply["left_out"].push_back({{"what", b.what}, {"tensors", b.tensors}, {"example", b.example}});
  if (r.merged)
    reply["adapter"] = {{"folder", r.adapter},
                        {"matrices", r.merged->matrices},
                        {"replaced", r.merged->whole},
                        {"token_rows", r.merged->token_rows},
                        {"largest_change", r.merged->largest}};
  if (r.importance) reply["importance"] = importance_json(*r.importance, r.account);
  if (r.verified)
    reply["verify"] = {{"text", r.verified->text.path},
                       {"windows", r.verified->before.windows},
                       {"window", r.verified->text.rule.window},
                       {"before", verified_json(r.verified->before)},
                       {"after", verified_json(r.verified->after)}};
  return reply;
}

}  // namespace moe
