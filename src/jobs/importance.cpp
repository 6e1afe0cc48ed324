#include "jobs/importance.h"

#include "convert/input_products.h"
#include "convert/input_squares.h"
#include "core/error.h"
#include "hub/gguf/gguf_model.h"
#include "hub/gguf/imatrix.h"

namespace moe {
namespace {

struct Seen {
  InputSquares squares;
  InputProducts products{squares};
};

MeasuredImportance measure(const ImportanceOptions& o, LoadedModel& model, const std::string& in,
                           const VerifyText* judge, int threads, const MemoryOptions& memory,
                           const Watch& watch) {
  Model& m = *model.model;
  const ScoreOptions rule{.window = calibration_window(o.calibration, m.config())};
  const CalibrationText text = read_calibration(o.calibration, model, Windows::spread);
  // The windows are spread over all of the text.
  if (judge != nullptr) check_not_fitted_to(*judge, text.all, *model.tokenizer, watch);
  MemoryNeed beside;
  beside.add("sums of squares", input_squares_bytes(m));
  if (o.gptq) beside.add("products of inputs", input_products_bytes(m));
  prepare_memory(in, scored_use(m, rule, DType::f32), beside, memory,
                 marked(o.gptq ? "leave out @gptq or lower @window" : "lower @window"), watch);
  const auto seen = std::make_shared<Seen>();
  InputSquares& squares = seen->squares;
  Run run(threads, DType::f32);
  run.observer = o.gptq ? static_cast<ProductObserver*>(&seen->products) : &squares;
  const Progress progress = watch.begin();
  const Score scored =
      score(m, run, *model.tokenizer, text.windows, rule, [&](int64_t done, int64_t total) {
        if (watch.stopped()) fail("interrupted while calibrating; nothing was written");
        progress(done, total, "calibration windows");
      });
  MeasuredImportance out{squares.of(gguf_target(m, *model.tokenizer).tensors), o.calibration.text,
                         scored.perplexity};
  out.importance.texts = {o.calibration.text};
  out.importance.windows = o.calibration.windows;
  out.importance.window = rule.window;
  if (o.gptq) out.shares = {seen, &seen->products};
  return out;
}

}  // namespace

FieldList fields(ImportanceOptions& o) {
  FieldList list;
  list.add(fields(o.calibration,
                  "with @quant, errors are weighed by the numbers that the columns of each matrix "
                  "multiply on it (an importance matrix); experts that it hardly reaches are named",
                  false));
  list.add("imatrix", o.imatrix,
           "in place of @calibration: a file of such weights, as llama.cpp's llama-imatrix and "
           "@save_imatrix write them");
  list.add("save_imatrix", o.save_imatrix,
           "write what @calibration measured, as llama.cpp reads it");
  list.add("gptq", o.gptq,
           "with @calibration: round each matrix column by column, and let later columns make good "
           "what earlier ones lost (GPTQ); the file has the same form and size, takes longer to "
           "make, and predicts better below four bits");
  return list;
}

void check_given(const ImportanceOptions& o, const Given& given) {
  if (!o.calibration.text.empty() && !o.imatrix.empty())
    fail_usage("@calibration measures what @imatrix is read from; give one of them");
  for (const char* name : {"windows", "window", "save_imatrix", "gptq"})
    if (o.calibration.text.empty() && given.has(name))
      fail_usage("{} needs a text to measure on: add @calibration TEXT", field(name));
}

MeasuredImportance find_importance(const ImportanceOptions& o, LoadedModel& model,
                                   const std::string& in, const VerifyText* judge, int threads,
                                   const MemoryOptions& memory, const Watch& watch) {
  if (!o.imatrix.empty()) return {read_importance(o.imatrix), o.imatrix, std::nullopt};
  if (!o.save_imatrix.empty()) check_importance_target(o.save_imatrix);
  MeasuredImportance out = measure(o, model, in, judge, threads, memory, watch);
  if (!o.save_imatrix.empty()) write_importance(o.save_imatrix, out.importance);
  return out;
}

}  // namespace moe
