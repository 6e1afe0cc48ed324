#include "jobs/verification.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "analyze/pages/conversion_page.h"
#include "core/error.h"
#include "evaluate/score.h"
#include "jobs/calibration.h"

namespace moe {
namespace {

// A name beside OUT that the same kind of model can be written to; what stands there is removed in
// the end.
class Passing {
 public:
  explicit Passing(const std::string& out) {
    const std::filesystem::path path =
        out.ends_with('/') ? std::filesystem::path(out).parent_path() : std::filesystem::path(out);
    const bool gguf = path.extension() == ".gguf";
    path_ = (path.parent_path() / fmt::format("{}.sweep-{}{}",
                                              (gguf ? path.stem() : path.filename()).string(),
                                              getpid(), gguf ? ".gguf" : ""))
                .string();
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

FieldList verify_fields(CompareJob& job) {
  const char* group = "Measuring what was made";
  FieldList list;
  list.group(group);
  list.add("verify", job.text,
           "a text, or a folder of them, that is not the calibration text: score both models on "
           "it, time them in turns, and print quality and speed side by side");
  list.add("report", job.html, "with @verify: write it all as a self-contained page");
  list.add(measuring_fields(job, group));
  return list;
}

void check_verify_options(const CompareJob& job, const Given& given) {
  if (!job.no_speed) validate(job.speed);
  if (job.no_speed && given.has("sweep"))
    fail_usage("@sweep sets quality against speed, which @no_speed leaves out; give one of them");
  if (!job.text.empty()) return check_speed_options(job, given);
  for (const char* name : {"report", "sweep", "verify_windows", "verify_window", "no_speed",
                           "prompt", "tokens", "repeats"})
    if (given.has(name)) fail_usage("{} needs a text to measure on: add @verify TEXT", field(name));
}

Verification::Verification(const CompareJob& job, const NamedModel& before, const Watch& watch)
    : job_(job), watch_(watch), before_(before) {
  if (!asked()) return;
  text_ = read_compared_text(job_.text, job_, before_.loaded, "verify_window");
  if (!job_.no_speed) validate(job_.speed, before_.loaded.model->config());
  if (!job_.html.empty()) page_ = std::make_unique<AtomicFile>(job_.html);
}

void Verification::check_not_fitted_to(std::span<const int32_t> calibration) const {
  moe::check_not_fitted_to(
      {job_.text, text_.ids, {.window = text_.options.window, .windows = text_.options.windows}},
      calibration, *before_.loaded.tokenizer, watch_);
}

ConversionReport Verification::measure_one(const std::string& path, const std::string& out) {
  LoadedModel after = open_model(path, job_.memory.limits);
  return compare_models(before_, {path, after}, job_, std::span(&text_, 1), watch_,
                        fmt::format("; {} is written", out));
}

ConversionReport Verification::measure(const std::string& out, ConversionReport made,
                                       const std::vector<SweepStep>& sweep) {
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
    watch_.tell("sweep: " + step.name);
    const Passing passing(out);
    step.write(passing.path());
    report.frontier.push_back(
        frontier_point(measure_one(passing.path(), out), step.name, step.ffn_share));
  }
  if (!sweep.empty()) report.frontier.push_back(frontier_start(report));
  return report;
}

void Verification::write_page(const ConversionReport& report) {
  if (!page_) return;
  page_->write(conversion_page(report));
  page_->commit();
}

}  // namespace moe
