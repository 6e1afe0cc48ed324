// The body of `moe carve`: from a dense model's file to that of the model whose experts are slices
// of its FFNs, and what that did to it.
#pragma once

#include "convert/carve.h"
#include "jobs/calibration.h"
#include "jobs/new_model.h"
#include "jobs/verification.h"

namespace moe {

struct CarveJob : MakeOptions {
  // of the calibration's products; absent: what the machine multiplies best
  std::optional<DType> compute;
  CalibrationOptions calibration;
  CarveOptions options;
  CompareJob verify;   // how the result is measured on another text, if it has one
  bool sweep = false;  // and that of every other number of active experts
};
FieldList fields(CarveJob&);
FieldList verify_fields(CarveJob&);
// Fails (usage) on what does not go together; asked first.
void check_given(const CarveJob&, const Given&);

struct CarveReply {
  std::string out;
  CarveOptions options;
  CarveResult result;  // without its model
  ModelConfig dense, carved;
  DType compute = DType::f32;
  double load_seconds = 0, carve_seconds = 0, write_seconds = 0;
  ResultType type;
  std::vector<ConvertedRow> rows;          // of a GGUF file
  std::optional<ConversionReport> report;  // where there is a text to measure on

  double seconds() const { return load_seconds + carve_seconds + write_seconds; }
  // "30 layers", or "20 of 30 layers".
  std::string layers_carved() const;
  // What a token takes of each FFN, in words.
  std::string shape() const;
  // The share of the bytes of a carved FFN that a decoded token reads.
  double read_share() const;
};
struct CarveCallbacks {
  std::function<void(const CarvedLayer&)> on_layer = [](const CarvedLayer&) {};
  // OUT is there and has not been measured yet.
  std::function<void(const CarveReply&)> on_written = [](const CarveReply&) {};
};
CarveReply carve_model(const CarveJob&, const Watch&, const CarveCallbacks& = {});
Json to_json(const CarveReply&, const Spelling& spell = {});

}  // namespace moe
