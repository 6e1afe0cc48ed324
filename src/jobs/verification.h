// What a conversion did, measured on another text: refused before the conversion where they cannot
// be done, measured after it on the files it wrote.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/file.h"
#include "core/json.h"
#include "jobs/compare.h"
#include "options/read.h"

namespace moe {

// The text, the page and how to measure.
FieldList verify_fields(CompareJob& job);
// Fails (usage) on options that have no meaning without a text, or beside others.
void check_verify_options(const CompareJob& job, const Given& given);

// A conversion of a sweep: its name on the frontier, the share of the FFN that works for a token,
// and what writes it to a file or folder of that name.
struct SweepStep {
  std::string name;
  double ffn_share = 1;
  std::function<void(const std::string& out)> write;  // absent: OUT itself, which is there already
};

// From before the conversion to after it.
class Verification {
 public:
  // Reads the text, opens the page. `before` and `watch` must outlive this. Does nothing where
  // `job` has no text.
  Verification(const CompareJob& job, const NamedModel& before, const Watch& watch);
  bool asked() const { return !job_.text.empty(); }
  // Fails (usage) where the text is, for a large part, the one that the conversion is fitted to
  // (jobs/calibration.h).
  void check_not_fitted_to(std::span<const int32_t> calibration) const;

  // Measures OUT, and with steps the frontier of them all, each written beside OUT and removed
  // again. `made` says how it was made: kind, steps and layers.
  ConversionReport measure(const std::string& out, ConversionReport made,
                           const std::vector<SweepStep>& sweep = {});
  // Writes the page, if one was asked for.
  void write_page(const ConversionReport& report);

 private:
  ConversionReport measure_one(const std::string& path, const std::string& out);

  CompareJob job_;
  const Watch& watch_;
  NamedModel before_;
  ComparedText text_;
  std::unique_ptr<AtomicFile> page_;
};

}  // namespace moe
