// --verify, --report and --sweep of the verbs that convert: refused before the conversion where they cannot be done, measured after it on the files it wrote.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cli/comparison.h"
#include "core/file.h"
#include "core/json.h"
#include "options/read.h"

namespace moe::cli {

// The text, the page and how to measure.
FieldList verify_fields(CompareFlags& flags);
// Fails (usage) on flags that have no meaning without --verify.
void check_verify_options(const CompareFlags& flags, const Given& given);

// A conversion of a sweep: its name on the frontier, the share of the FFN that works for a token, and what writes it to a file or folder of that name.
struct SweepStep {
  std::string name;
  double ffn_share = 1;
  std::function<void(const std::string& out)> write;  // absent: OUT itself, which is there already
};

// From before the conversion to after it. Does nothing where --verify was not given.
class Verification {
 public:
  // Reads the text, opens the page. `before` must outlive this.
  Verification(const CompareFlags& flags, const NamedModel& before);
  bool asked() const { return !flags_.text.empty(); }
  // Fails (usage) where the text is, for a large part, the one that the conversion is fitted to (cli/conversion.h).
  void check_not_fitted_to(std::span<const int32_t> calibration) const;

  // Measures OUT, and with steps the frontier of them all, each written beside OUT and removed again. `made` says how it was made: kind, steps and layers.
  ConversionReport measure(const std::string& out, ConversionReport made, const std::vector<SweepStep>& sweep = {});
  // Writes the page, if one was asked for.
  void write_page(const ConversionReport& report);
  const std::string& page_path() const { return flags_.html; }

 private:
  ConversionReport measure_one(const std::string& path, const std::string& out);

  CompareFlags flags_;
  NamedModel before_;
  ComparedText text_;
  std::unique_ptr<AtomicFile> page_;
};

}  // namespace moe::cli
