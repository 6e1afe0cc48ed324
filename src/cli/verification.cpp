#include "cli/verification.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "analyze/pages/conversion_page.h"
#include "cli/conversion.h"
#include "cli/screen.h"
#include "core/error.h"
#include "evaluate/score.h"

namespace moe::cli {
namespace {

// A name beside OUT that the same kind of model can be written to; what stands there is removed in the end.
class Passing {
 public:
  explicit Passing(const std::string& out) {
    const std::filesystem::path path = out.ends_with('/') ? std::filesystem::path(out).parent_path() : std::filesystem::path(out);
    const bool gguf = path.extension() == ".gguf";
    path_ = (path.parent_path() / fmt::format("{}.sweep-{}{}", (gguf ? path.stem() : path.filename()).string(), getpid(), gguf ? ".gguf" : "")).string();
    if (std::filesystem::exists(path_)) fail("{} is in the way of the sweep; remove it", path_);
  }
  ~Passing() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Passing(const Passing&) = delete;
  Passing& operator=(const Passing&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

FieldList verify_fields(CompareFlags& f) {
  const char* group = "Measuring what was made";
  FieldList list;
  list.group(group);
  list.add(
      "verify", f.text,
      "a text, or a folder of them, that is not the calibration text: score both models on it, time them in turns, and print quality and speed side by side");
  list.add("report", f.html, "with @verify: write it all as a self-contained page");
  list.add(measuring_fields(f, group));
  return list;
}

void check_verify_options(const CompareFlags& f, const Given& given) {
  if (!f.no_speed) validate(f.speed);
  if (f.no_speed && given.has("sweep")) fail_usage("--sweep sets quality against speed, which --no-speed leaves out; give one of them");
  if (!f.text.empty()) return;
  for (const char* name : {"report", "sweep", "verify_windows", "verify_window", "no_speed", "prompt", "tokens", "repeats"})
    if (given.has(name)) fail_usage("{} needs a text to measure on: add --verify TEXT", field(name));
}

Verification::Verification(const CompareFlags& flags, const NamedModel& before) : flags_(flags), before_(before) {
  if (!asked()) return;
  text_ = read_compared_text(flags_, before_.loaded);
  if (!flags_.no_speed) validate(flags_.speed, before_.loaded.model->config());
  if (!flags_.html.empty()) page_ = std::make_unique<AtomicFile>(flags_.html);
}

void Verification::check_not_fitted_to(std::span<const int32_t> calibration) const {
  moe::cli::check_not_fitted_to({flags_.text, text_.ids, text_.options.window, text_.options.windows}, calibration, *before_.loaded.tokenizer);
}

ConversionReport Verification::measure_one(const std::string& path, const std::string& out) {
  LoadedModel after = load_model(path, LoadFor::inference);
  return compare_models(before_, {path, after}, flags_, text_, fmt::format("; {} is written", out));
}

ConversionReport Verification::measure(const std::string& out, ConversionReport made, const std::vector<SweepStep>& sweep) {
  ConversionReport report = measure_one(out, out);
  report.kind = std::move(made.kind);
  report.steps = std::move(made.steps);
  report.layers = std::move(made.layers);
  for (const SweepStep& step : sweep) {
    if (!step.write) {
      report.frontier.push_back(frontier_point(report, step.name, step.ffn_share));
      report.frontier.back().is_written = true;
      continue;
    }
    tell("sweep: {}\n", step.name);
    const Passing passing(out);
    step.write(passing.path());
    report.frontier.push_back(frontier_point(measure_one(passing.path(), out), step.name, step.ffn_share));
  }
  if (!sweep.empty()) report.frontier.push_back(frontier_start(report));
  return report;
}

void Verification::write_page(const ConversionReport& report) {
  if (!page_) return;
  page_->write(conversion_page(report));
  page_->commit();
}

}  // namespace moe::cli
