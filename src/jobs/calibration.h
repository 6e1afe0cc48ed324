// The texts of a conversion: the one that something is measured on, and the one that judges what
// was made.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/watch.h"
#include "evaluate/score.h"
#include "hub/hub.h"
#include "options/fields.h"

namespace moe {

// The whole text, or folder of them, as tokens.
std::vector<int32_t> read_ids(const std::string& path, const Tokenizer&);

struct CalibrationOptions {
  std::string text;
  int64_t windows = 8;
  std::optional<int64_t> window;  // absent: default_window
};
FieldList fields(CalibrationOptions&, const std::string& what_for, bool required = true);
int64_t calibration_window(const CalibrationOptions&, const ModelConfig&);
// Which windows of the text are read: the first ones, or as many spread evenly over all of it, so
// that each text of a folder has its part.
enum class Windows { first, spread };
struct CalibrationText {
  std::vector<int32_t> all;      // of the text
  std::vector<int32_t> windows;  // the tokens of it that are read, window after window
};
// Fails, with the number of tokens that is needed, where there are fewer.
CalibrationText read_calibration(const CalibrationOptions&, const LoadedModel&, Windows);

// A text that the result and what it came from are scored on, by the rule of windows of moe score.
struct VerifyText {
  std::string path;
  std::vector<int32_t> ids;
  ScoreOptions rule;
  int64_t windows = 0;  // that there are by the rule
};
// A window of 0 stands for default_window. Fails where the text has not one; `window` is the option
// that says how long they are, empty where there is none.
VerifyText read_verify(const std::string& path, const LoadedModel&,
                       ScoreOptions rule = {.window = 0}, std::string_view window = "");
// Fails (usage) where half or more of what is scored, by its lines, stands in the text that the
// conversion is fitted to, or half of that one in it: it could not show the damage. Says so where a
// fifth does.
void check_not_fitted_to(const VerifyText&, std::span<const int32_t> calibration, const Tokenizer&,
                         const Watch&);
// In f32. `what` is counted; `interrupted` ends the message when the work is stopped: "nothing was
// written".
Score score_verify(Model&, const Tokenizer&, const VerifyText&, int threads, std::string_view what,
                   std::string_view interrupted, const Watch&);

}  // namespace moe
