// What the verbs that make one model out of others share: where the result goes, the texts they read, and the account they print.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/memory.h"
#include "convert/assembly.h"
#include "core/json.h"
#include "hub/convert.h"

namespace moe::cli {

// The folder or the GGUF file OUT while it is being made: a hidden folder beside it, which takes its name, or becomes the file, once it is whole and is removed
// when anything goes wrong before.
class NewModel {
 public:
  // Fails where OUT is there already (but for an empty folder) or cannot be made. From here on Ctrl-C is watched.
  explicit NewModel(const std::string& out);
  ~NewModel();
  NewModel(const NewModel&) = delete;
  NewModel& operator=(const NewModel&) = delete;

  // Writes the model and shows how far it is. Ctrl-C ends it with nothing left behind. `dtype` is f32 or bf16, for a file whose name ends in .gguf any type.
  // Returns what became of the tensors of a file; of a folder, where all take that type, nothing.
  std::vector<ConvertedRow> save(Model&, const Tokenizer&, WantedType type, int threads, const std::map<std::string, std::string>& metadata = {});

 private:
  void save_folder(Model&, const Tokenizer&, DType dtype, const std::map<std::string, std::string>& metadata);
  std::vector<ConvertedRow> make_file(WantedType type, int threads);
  void remove_parents();

  std::string out_, staged_;
  std::vector<std::string> parents_;  // made for it, outermost first
};
constexpr const char* kNewModelHelp =
    "what to write: a GGUF file when the name ends in .gguf, else a folder as Hugging Face lays it out; it must not be there yet";

// --calibration, --windows and --window: the text that something is measured on.
struct CalibrationFlags {
  std::string text;
  int64_t windows = 8;
  std::optional<int64_t> window;  // absent: 2048, or the model's context where that is shorter
};
FieldList fields(CalibrationFlags&, const std::string& what_for);
int64_t calibration_window(const CalibrationFlags&, const ModelConfig&);
// The first windows * window tokens of the text; fails, with the number that is needed, where there are fewer.
std::vector<int32_t> read_calibration(const CalibrationFlags&, const LoadedModel&);

// The account as people and as programs read it.
void print_parts(const std::vector<PartFate>&);
Json to_json(const std::vector<PartFate>&);
// "OUT: a mixtral model of 4 MoE layers ..., 12.3M parameters, 5.1M of them active", one line.
std::string describe_result(const std::string& out, const Model&, DType dtype);
Json result_json(const std::string& out, const Model&, DType dtype);

// A text that the result and what it came from are scored on, by the rule of windows of moe score.
struct VerifyText {
  std::string path;
  std::vector<int32_t> ids;
  int64_t window = 0, windows = 0;
};
VerifyText read_verify(const std::string& path, const LoadedModel&);
// Fails (usage) where half or more of what is scored, by its lines, stands in the text that the conversion is fitted to, or half of that one in it: it could
// not show the damage. Says so where a fifth does.
void check_not_fitted_to(const VerifyText&, std::span<const int32_t> calibration, const Tokenizer&);
// What packed copies may take of the models that are scored, in f32; throws where it does not fit.
void prepare_verify(const std::vector<Model*>&, const std::string& path, const VerifyText&, const MemoryFlags&);
// `what` stands in the progress line.
double perplexity_of(Model&, const Tokenizer&, const VerifyText&, int threads, const std::string& what);
void print_verify(const VerifyText&, double before, double after);
Json verify_json(const VerifyText&, double before, double after);

// Fails once the user has pressed Ctrl-C.
void fail_if_interrupted(const std::string& out);

}  // namespace moe::cli
