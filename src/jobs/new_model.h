// What is alike where one model is made out of others: what is asked for beside the making, the
// place that the result goes to, and the account of it.
#pragma once

#include <string>
#include <vector>

#include "convert/assembly.h"
#include "core/json.h"
#include "core/watch.h"
#include "hub/convert.h"
#include "jobs/forward_memory.h"
#include "jobs/result_type.h"

namespace moe {

struct MakeOptions {
  std::string in, out;  // the model that it begins with, and what is written
  ResultTypeOptions type;
  MemoryOptions memory;
  int threads = 0;
};

struct Made {
  std::string out;
  ModelConfig config;
  ResultType type;
  std::vector<ConvertedRow> rows;  // of a GGUF file
  std::vector<PartFate> parts;
};
// `spell`: as in core/error.h.
Json to_json(const Made&, const Spelling& spell = {});

// The folder or the GGUF file OUT while it is being made: a hidden folder beside it, which takes
// its name, or becomes the file, once it is whole and is removed when anything goes wrong before.
class NewModel {
 public:
  // Fails where OUT is there already (but for an empty folder) or cannot be made. `watch`, which
  // must outlive this, is asked from here on whether to stop.
  NewModel(const std::string& out, const Watch& watch);
  ~NewModel();
  NewModel(const NewModel&) = delete;
  NewModel& operator=(const NewModel&) = delete;

  // Fails once the work shall end; whoever makes what is saved here asks too.
  void check_stopped() const;
  // Writes the model and tells how far it is; stopped, it leaves nothing behind. The type is f32 or
  // bf16, for a file whose name ends in .gguf any. Returns what became of the tensors of a file; of
  // a folder, where all take that type, nothing.
  std::vector<ConvertedRow> save(Model&, const Tokenizer&, WantedType type, int threads);

 private:
  void save_folder(Model&, const Tokenizer&, DType dtype);
  std::vector<ConvertedRow> make_file(WantedType type, int threads);
  void remove_parents();

  std::string out_, staged_;
  const Watch& watch_;
  std::vector<std::string> parents_;  // made for it, outermost first
};
constexpr const char* kNewModelHelp =
    "what to write: a GGUF file when the name ends in .gguf, else a folder as Hugging Face lays it "
    "out; it must not be there yet";

}  // namespace moe
