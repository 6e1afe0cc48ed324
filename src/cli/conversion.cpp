#include "cli/conversion.h"

#include <fmt/format.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/screen.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/file.h"
#include "core/words.h"
#include "evaluate/score.h"
#include "hub/convert.h"
#include "hub/folder/architectures.h"
#include "model/cost.h"
#include "text/common_lines.h"
#include "text/corpus.h"

namespace moe::cli {
namespace {

namespace fs = std::filesystem;

// Of the lines of a text to verify by: held-out parts of one source share a tenth (manuals say things twice), a part of the calibration text all.
constexpr double kFittedShare = 0.5, kNotedShare = 0.2;

std::vector<int32_t> read_ids(const std::string& path, const Tokenizer& tokenizer) {
  const Corpus corpus({path}, tokenizer);
  std::vector<int32_t> ids(static_cast<size_t>(corpus.size()));
  corpus.fill(0, corpus.size(), ids.data());
  return ids;
}

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

}  // namespace

void fail_if_interrupted(const std::string& out) {
  if (watch_interrupts()) fail("interrupted; nothing was written to {}", out);
}

NewModel::NewModel(const std::string& out) : out_(without_slash(out)) {
  if (out_.empty()) fail_usage("OUT is empty; give the name of a folder or of a .gguf file");
  std::error_code error;
  const bool may_be_empty = target_of(out_) == Target::folder && fs::is_directory(out_, error);
  if (fs::exists(out_, error) && !(may_be_empty && fs::is_empty(out_, error)))
    fail("{} is there already and will not be replaced; choose another name, or delete it first", out_);
  const fs::path parent = fs::absolute(out_, error).parent_path();
  for (fs::path p = parent; !p.empty() && !fs::exists(p, error); p = p.parent_path()) parents_.insert(parents_.begin(), p.string());
  watch_interrupts();  // before anything is made: from here on Ctrl-C must not end the command where it stands
  fs::create_directories(parent, error);
  if (error) {
    remove_parents();
    fail("cannot make the folder {}: {}; choose another one", parent.string(), error.message());
  }
  std::string name = (parent / ("." + fs::path(out_).filename().string() + ".tmp-XXXXXX")).string();
  if (mkdtemp(name.data()) == nullptr) {
    const int reason = errno;
    remove_parents();
    fail("cannot make a folder in {}: {}; choose another one", parent.string(), std::strerror(reason));
  }
  staged_ = name;
  const mode_t mask = umask(0);  // mkdtemp gives nobody else a right
  umask(mask);
  chmod(staged_.c_str(), 0777 & ~mask);
}

NewModel::~NewModel() {
  if (staged_.empty()) return;
  std::error_code ignored;
  fs::remove_all(staged_, ignored);
  remove_parents();
}

void NewModel::remove_parents() {
  std::error_code ignored;
  for (auto p = parents_.rbegin(); p != parents_.rend(); ++p) fs::remove(*p, ignored);  // only if nothing else came into it
}

std::vector<ConvertedRow> NewModel::save(Model& model, const Tokenizer& tokenizer, WantedType type, int threads,
                                         const std::map<std::string, std::string>& metadata) {
  const bool file = target_of(out_) == Target::gguf;
  save_folder(model, tokenizer, file ? DType::f32 : type.dtype, metadata);  // a file is made of a folder in f32, so that nothing is rounded twice
  std::vector<ConvertedRow> rows;
  if (file) {
    rows = make_file(type, threads);
    parents_.clear();  // they stay; what was staged goes
  } else {
    std::error_code error;
    fs::rename(staged_, out_, error);
    if (error) fail("cannot give the result the name {}: {}; nothing was written", out_, error.message());
    staged_.clear();
  }
  sync_folder(fs::absolute(out_).parent_path().string());
  return rows;
}

void NewModel::save_folder(Model& model, const Tokenizer& tokenizer, DType dtype, const std::map<std::string, std::string>& metadata) {
  {
    ProgressLine progress;
    save_model(staged_, model, tokenizer, dtype, metadata, [&](int64_t done, int64_t total) {
      fail_if_interrupted(out_);
      progress.show(done, total, "numbers written");
    });
  }
  fail_if_interrupted(out_);
}

std::vector<ConvertedRow> NewModel::make_file(WantedType type, int threads) {
  LoadedModel whole = load_model(staged_, LoadFor::inference);
  ProgressLine progress;
  const auto show = [&](int64_t bytes, int64_t total) {
    fail_if_interrupted(out_);
    progress.show(bytes >> 10, total >> 10, "KiB");
  };
  return convert_model(whole, staged_, out_, {.dtype = type, .threads = threads, .progress = show}).rows;
}

FieldList fields(CalibrationFlags& f, const std::string& what_for) {
  FieldList list;
  list.add("calibration", f.text, "a text, or a folder of them: " + what_for).required();
  list.add("windows", f.windows, "windows of it that are read; more of them show more, and take as much longer");
  list.add("window", f.window, "tokens a window; default: 2048, or the model's context where that is shorter");
  return list;
}

int64_t calibration_window(const CalibrationFlags& f, const ModelConfig& config) {
  if (f.windows < 1) fail_usage("--windows is {}; it must be at least 1", f.windows);
  const int64_t window = f.window.value_or(default_window(config));
  if (window < 1) fail_usage("--window is {}; it must be at least 1", window);
  if (window > config.context) fail_usage("--window is {}, but the model was trained on contexts of {}; give at most that", window, config.context);
  if (f.windows > INT64_MAX / window) fail_usage("--windows {} of {} tokens are more than any text has", f.windows, window);
  return window;
}

std::vector<int32_t> read_calibration(const CalibrationFlags& f, const LoadedModel& model) {
  const int64_t window = calibration_window(f, model.model->config()), needed = f.windows * window;
  std::vector<int32_t> ids = read_ids(f.text, *model.tokenizer);
  const auto there = static_cast<int64_t>(ids.size());
  if (there < needed)
    fail("{} has {} tokens, but {} of {} need {}; give a longer text{}", f.text, there, counted(f.windows, "window"), window, needed,
         there >= window ? fmt::format(", or --windows {}", there / window) : fmt::format(", or a shorter --window"));
  ids.resize(static_cast<size_t>(needed));
  return ids;
}

void check_not_fitted_to(const VerifyText& text, std::span<const int32_t> calibration, const Tokenizer& tokenizer) {
  std::span<const int32_t> scored = text.ids;
  if (text.windows > 0) scored = scored.first(std::min(scored.size(), static_cast<size_t>(text.windows * text.window)));
  const std::string judges = tokenizer.decode(scored), fitted = tokenizer.decode(calibration);
  // The calibration text is often the first part of a file, and all of it may stand in a long text.
  const double there = shared_lines(judges, fitted), here = shared_lines(fitted, judges), share = std::max(there, here);
  const std::string seen = there >= here ? fmt::format("{:.0f}% of --verify {}, by its lines, stand in the calibration text", 100 * share, text.path)
                                         : fmt::format("{:.0f}% of the calibration text, by its lines, stand in --verify {}", 100 * share, text.path);
  if (share >= kFittedShare) fail_usage("{}: what was fitted to them cannot show the damage on them; give another text", seen);
  if (share >= kNotedShare) tell("note: {} too; the damage may be larger than it shows\n", seen);
}

void print_parts(const std::vector<PartFate>& parts) {
  size_t width = 4, words = 6;
  for (const PartFate& p : parts) width = std::max(width, p.part.size()), words = std::max(words, p.became.size());
  fmt::print("{:<{}}  {:<{}}  {:>9}  {:>9}\n", "part", width, "became", words, "before", "after");
  const auto number = [](int64_t n) { return n == 0 ? std::string("-") : human_count(static_cast<double>(n)); };
  for (const PartFate& p : parts) fmt::print("{:<{}}  {:<{}}  {:>9}  {:>9}\n", p.part, width, p.became, words, number(p.before), number(p.after));
}

Json to_json(const std::vector<PartFate>& parts) {
  Json rows = Json::array();
  for (const PartFate& p : parts) rows.push_back({{"part", p.part}, {"became", p.became}, {"before", p.before}, {"after", p.after}});
  return rows;
}

std::string describe_result(const std::string& out, const Model& model, DType dtype) {
  const ModelConfig& c = model.config();
  const ParamCount count = count_params(c);
  return fmt::format("{}: a model of type {} in {}, {} of {} with {} experts of width {}, {} a token (recipe {}); {} parameters, {} active for a token", out,
                     architecture_of(c).model_type, name_of(dtype), counted(c.moe_layer_count(), "MoE layer"), c.layers, c.routing.experts, c.expert_width,
                     c.routing.top_k, c.routing.recipe, human_count(static_cast<double>(count.total())), human_count(static_cast<double>(count.active())));
}

Json result_json(const std::string& out, const Model& model, DType dtype) {
  const ModelConfig& c = model.config();
  const ParamCount count = count_params(c);
  return {{"out", out},
          {"model_type", architecture_of(c).model_type},
          {"dtype", name_of(dtype)},
          {"moe_layers", c.moe_layer_count()},
          {"layers", c.layers},
          {"recipe", c.routing.recipe},
          {"experts", c.routing.experts},
          {"top_k", c.routing.top_k},
          {"expert_width", c.expert_width},
          {"parameters", count.total()},
          {"active", count.active()}};
}

VerifyText read_verify(const std::string& path, const LoadedModel& model) {
  VerifyText text{.path = path, .ids = read_ids(path, *model.tokenizer), .window = default_window(model.model->config())};
  text.windows = scored_windows(static_cast<int64_t>(text.ids.size()), {.window = text.window});  // fails where there is not one
  return text;
}

void prepare_verify(const std::vector<Model*>& models, const std::string& path, const VerifyText& text, const MemoryFlags& f) {
  prepare_memory(path, scored_in_turn(models, {.window = text.window}, DType::f32), {}, f, "leave --verify out");
}

double perplexity_of(Model& model, const Tokenizer& tokenizer, const VerifyText& text, int threads, const std::string& what) {
  ProgressLine progress;
  const std::atomic<bool>& stop = watch_interrupts();
  Run run(threads, DType::f32);
  return score(model, run, tokenizer, text.ids, {.window = text.window},
               [&](int64_t done, int64_t total) {
                 if (stop) fail("interrupted while scoring; nothing was written");
                 progress.show(done, total, "windows of " + what);
               })
      .perplexity;
}

void print_verify(const VerifyText& text, double before, double after) {
  fmt::print("perplexity on {} ({} of {}): {:.4f} before, {:.4f} after, {:+.4f} ({:+.2f}%)\n", text.path, counted(text.windows, "window"), text.window, before,
             after, after - before, 100 * (after / before - 1));
}

Json verify_json(const VerifyText& text, double before, double after) {
  return {{"text", text.path}, {"windows", text.windows}, {"window", text.window}, {"before", {{"perplexity", before}}}, {"after", {{"perplexity", after}}}};
}

}  // namespace moe::cli
