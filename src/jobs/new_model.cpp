#include "jobs/new_model.h"

#include <fmt/format.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "hub/folder/architectures.h"
#include "model/cost.h"

namespace moe {
namespace {

namespace fs = std::filesystem;

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

}  // namespace

void NewModel::check_stopped() const {
  if (watch_.stopped()) fail("interrupted; nothing was written to {}", out_);
}

NewModel::NewModel(const std::string& out, const Watch& watch)
    : out_(without_slash(out)), watch_(watch) {
  if (out_.empty()) fail_usage("OUT is empty; give the name of a folder or of a .gguf file");
  std::error_code error;
  const bool may_be_empty = target_of(out_) == Target::folder && fs::is_directory(out_, error);
  if (fs::exists(out_, error) && !(may_be_empty && fs::is_empty(out_, error)))
    fail("{} is there already and will not be replaced; choose another name, or delete it first",
         out_);
  const fs::path parent = fs::absolute(out_, error).parent_path();
  for (fs::path p = parent; !p.empty() && !fs::exists(p, error); p = p.parent_path())
    parents_.insert(parents_.begin(), p.string());
  check_stopped();  // before anything is made: from here on nothing may end where it stands
  fs::create_directories(parent, error);
  if (error) {
    remove_parents();
    fail("cannot make the folder {}: {}; choose another one", parent.string(), error.message());
  }
  std::string name =
      (parent / fmt::format(".{}.tmp-XXXXXX", fs::path(out_).filename().string())).string();
  if (mkdtemp(name.data()) == nullptr) {
    const int reason = errno;
    remove_parents();
    fail("cannot make a folder in {}: {}; choose another one", parent.string(),
         std::strerror(reason));
  }
  staged_ = name;
  const mode_t mask = umask(0);  // mkdtemp gives nobody else a right
  umask(mask);
  chmod(staged_.c_str(), 0777 & ~mask);
}

NewModel::~NewModel() {
  if (staged_.empty()) return;
  std::error_code ignored;
  fs::remove_all(staged_, ignored);
  remove_parents();
}

void NewModel::remove_parents() {
  std::error_code ignored;
  // only if nothing else came into it
  for (auto p = parents_.rbegin(); p != parents_.rend(); ++p) fs::remove(*p, ignored);
}

std::vector<ConvertedRow> NewModel::save(Model& model, const Tokenizer& tokenizer, WantedType type,
                                         int threads) {
  const bool file = target_of(out_) == Target::gguf;
  save_folder(
      model, tokenizer,
      file ? DType::f32
           : type.dtype);  // a file is made of a folder in f32, so that nothing is rounded twice
  std::vector<ConvertedRow> rows;
  if (file) {
    rows = make_file(type, threads);
    parents_.clear();  // they stay; what was staged goes
  } else {
    std::error_code error;
    fs::rename(staged_, out_, error);
    if (error)
      fail("cannot give the result the name {}: {}; nothing was written", out_, error.message());
    staged_.clear();
  }
  sync_folder(fs::absolute(out_).parent_path().string());
  return rows;
}

void NewModel::save_folder(Model& model, const Tokenizer& tokenizer, DType dtype) {
  {
    const Progress progress = watch_.begin();
    save_model(staged_, model, tokenizer, dtype, {}, [&](int64_t done, int64_t total) {
      check_stopped();
      progress(done, total, "numbers written");
    });
  }
  check_stopped();
}

std::vector<ConvertedRow> NewModel::make_file(WantedType type, int threads) {
  LoadedModel whole = open_model(staged_, {});
  const Progress progress = watch_.begin();
  const auto show = [&](int64_t bytes, int64_t total) {
    check_stopped();
    progress(bytes >> 10, total >> 10, "KiB");
  };
  return convert_model(whole, staged_, out_, {.dtype = type, .threads = threads, .progress = show})
      .rows;
}

Json to_json(const Made& made, const Spelling& spell) {
  Json parts = Json::array();
  for (const PartFate& p : made.parts)
    parts.push_back(
        {{"part", p.part}, {"became", p.became}, {"before", p.before}, {"after", p.after}});
  const ModelConfig& c = made.config;
  const ParamCount count = count_params(c);
  return {{"out", made.out},
          {"model_type", architecture_of(c).model_type},
          {"dtype", name_of(made.type.type.dtype)},
          {"weights", weights_json(made.type, made.rows, spell)},
          {"parts", parts},
          {"moe_layers", c.moe_layer_count()},
          {"layers", c.layers},
          {"recipe", c.routing.recipe},
          {"experts", c.routing.experts},
          {"top_k", c.routing.top_k},
          {"expert_width", c.expert_width},
          {"parameters", count.total()},
          {"active", count.active()}};
}

}  // namespace moe
