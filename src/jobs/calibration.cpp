#include "jobs/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/words.h"
#include "text/common_lines.h"
#include "text/corpus.h"

namespace moe {
namespace {

// Of the lines of a text to verify by: held-out parts of one source share a tenth (manuals say
// things twice), a part of the calibration text all.
constexpr double kFittedShare = 0.5, kNotedShare = 0.2;

}  // namespace

std::vector<int32_t> read_ids(const std::string& path, const Tokenizer& tokenizer) {
  const Corpus corpus({path}, tokenizer);
  std::vector<int32_t> ids(static_cast<size_t>(corpus.size()));
  corpus.fill(0, corpus.size(), ids.data());
  return ids;
}

FieldList fields(CalibrationOptions& o, const std::string& what_for, bool required) {
  FieldList list;
  FieldEntry text = list.add("calibration", o.text, "a text, or a folder of them: " + what_for);
  if (required) text.required();
  list.add("windows", o.windows,
           "windows of it that are read; more of them show more, and take as much longer");
  list.add("window", o.window,
           "tokens a window; default: 2048, or the model's context where that is shorter");
  return list;
}

int64_t calibration_window(const CalibrationOptions& o, const ModelConfig& config) {
  if (o.windows < 1) fail_usage("@windows is {}; it must be at least 1", o.windows);
  const int64_t window = o.window.value_or(default_window(config));
  if (window < 1) fail_usage("@window is {}; it must be at least 1", window);
  if (window > config.context)
    fail_usage("@window is {}, but the model was trained on contexts of {}; give at most that",
               window, config.context);
  if (o.windows > INT64_MAX / window)
    fail_usage("@windows {} of {} tokens are more than any text has", o.windows, window);
  return window;
}

CalibrationText read_calibration(const CalibrationOptions& o, const LoadedModel& model,
                                 Windows which) {
  const int64_t window = calibration_window(o, model.model->config()), needed = o.windows * window;
  CalibrationText text{read_ids(o.text, *model.tokenizer), {}};
  const auto there = static_cast<int64_t>(text.all.size());
  if (there < needed)
    fail("{} has {} tokens, but {} of {} need {}; give a longer text{}", o.text, there,
         counted(o.windows, "window"), window, needed,
         there >= window ? message(", or @windows {}", there / window)
                         : marked(", or a shorter @window"));
  const int64_t apart = which == Windows::spread ? there / o.windows : window;
  for (int64_t i = 0; i < o.windows; ++i)
    text.windows.insert(text.windows.end(), text.all.begin() + i * apart,
                        text.all.begin() + i * apart + window);
  return text;
}

void check_not_fitted_to(const VerifyText& text, std::span<const int32_t> calibration,
                         const Tokenizer& tokenizer, const Watch& watch) {
  std::span<const int32_t> scored = text.ids;
  if (text.rule.windows > 0)
    scored = scored.first(
        std::min(scored.size(), static_cast<size_t>(text.rule.windows * text.rule.window)));
  const std::string judges = tokenizer.decode(scored), fitted = tokenizer.decode(calibration);
  // The calibration text is often the first part of a file, and all of it may stand in a long text.
  const double there = shared_lines(judges, fitted), here = shared_lines(fitted, judges),
               share = std::max(there, here);
  const std::string seen =
      there >= here ? message("{:.0f}% of @verify {}, by its lines, stand in the calibration text",
                              100 * share, text.path)
                    : message("{:.0f}% of the calibration text, by its lines, stand in @verify {}",
                              100 * share, text.path);
  if (share >= kFittedShare)
    fail_usage("{}: what was fitted to them cannot show the damage on them; give another text",
               seen);
  if (share >= kNotedShare)
    watch.tell(fmt::format("note: {} too; the damage may be larger than it shows", seen));
}

VerifyText read_verify(const std::string& path, const LoadedModel& model, ScoreOptions rule,
                       std::string_view window) {
  if (rule.window == 0) rule.window = default_window(model.model->config());
  VerifyText text{.path = path, .ids = read_ids(path, *model.tokenizer), .rule = rule};
  text.windows = scored_windows(std::ssize(text.ids), rule, {.text = path, .window = window});
  return text;
}

Score score_verify(Model& model, const Tokenizer& tokenizer, const VerifyText& text, int threads,
                   std::string_view what, std::string_view interrupted, const Watch& watch) {
  const Progress progress = watch.begin();
  Run run(threads, DType::f32);
  return score(model, run, tokenizer, text.ids, text.rule, [&](int64_t done, int64_t total) {
    if (watch.stopped()) fail("interrupted while scoring; {}", interrupted);
    progress(done, total, what);
  });
}

}  // namespace moe
