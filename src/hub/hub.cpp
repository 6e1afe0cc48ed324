// The folder as a whole: which files, in which order they are read, checked and replaced. What a
// name or a key means stands in the tables beside.
#include "hub/hub.h"

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <optional>
#include <set>

#include "core/error.h"
#include "core/file.h"
#include "core/nearest.h"
#include "hub/adapter.h"
#include "hub/folder/config_json.h"
#include "hub/folder/packed.h"
#include "hub/foreign.h"
#include "hub/gguf/gguf_model.h"
#include "hub/hub_cache.h"
#include "hub/named_models.h"
#include "hub/tensor_layout.h"
#include "hub/tensor_map.h"
#include "model/adapters.h"
#include "ops/memory.h"
#include "text/tokenizer_config.h"

namespace moe {
namespace {

namespace fs = std::filesystem;

constexpr const char* kHolds =
    "a model folder holds config.json, model.safetensors and tokenizer.json";

bool is_there(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

[[noreturn]] void fail_absent(const std::string& path) {
  if (path.ends_with(".gguf")) fail("{}: there is no such file", path);
  const size_t slash = path.find('/');
  const std::optional<HubName> name = parse_hub_name(path);
  if (!name || slash == path.npos || is_there(path.substr(0, slash)))
    fail("{}: there is no such folder; {}", path, kHolds);
  fail(
      "{}: there is no such folder, nor a model of that name in Hugging Face's cache{}; `{}` "
      "fetches it",
      path, hub_cache().empty() ? "" : fmt::format(" ({})", hub_place(*name)),
      fetch_command(*name));
}

[[noreturn]] void fail_file(const std::string& path) {
  const fs::path folder = fs::path(path).has_parent_path() ? fs::path(path).parent_path() : ".";
  if (is_there((folder / "config.json").string()))
    fail("{}: this is one file of a model folder; name the folder in its place: {}", path,
         folder.string());
  fail("{}: this file is no GGUF, and {}", path, kHolds);
}

// Weights that other programs read, where that is all the folder has.
void check_reads_weights(const std::string& folder) {
  const std::optional<std::string> other = foreign_weights(folder);
  const std::string single = folder + "/model.safetensors";
  if (!other || other->ends_with(".safetensors") || is_there(single) ||
      is_there(single + ".index.json"))
    return;
  if (other->ends_with(".gguf"))
    fail("{}: its weights are in {}; name that file in place of the folder", folder,
         printable(*other));
  fail(
      "{}: its weights are in {}, and of folders only safetensors are read; have transformers "
      "write them: AutoModelForCausalLM.from_pretrained(..).save_pretrained(..)",
      folder, printable(*other));
}

void check_is_model_folder(const std::string& folder) {
  std::error_code error;
  const fs::file_status status = fs::status(folder, error);
  if (!fs::exists(status)) fail_absent(folder);
  if (fs::is_regular_file(status)) fail_file(folder);
  if (!fs::is_directory(status)) fail("{}: this is no folder; {}", folder, kHolds);
  check_reads_weights(folder);
  const bool tokenizer =
      is_there(folder + "/tokenizer.json") || is_there(folder + "/tokenizer.model");
  if (is_there(folder + "/config.json") && !tokenizer && is_there(folder + "/vocab.json"))
    fail(
        "{}: there is no tokenizer.json in this folder, only vocab.json; have transformers write "
        "one: AutoTokenizer.from_pretrained(..).save_pretrained(..)",
        folder);
  if (!is_there(folder + "/config.json"))
    fail("{}: there is no config.json in this folder; {}", folder, kHolds);
  if (!tokenizer) fail("{}: there is no tokenizer.json in this folder; {}", folder, kHolds);
}

void check_vocabulary(const Tokenizer& tokenizer, const ModelConfig& config,
                      const std::string& where) {
  if (tokenizer.vocab_size() > config.vocab)
    fail("{}: the tokenizer has {} tokens, but the model's vocabulary is {}", where,
         tokenizer.vocab_size(), config.vocab);
}

std::optional<std::string> text_if_there(const std::string& path) {
  if (!is_there(path)) return std::nullopt;
  return read_text(path);
}

void write_if_different(const std::string& path, const std::string& text) {
  if (text_if_there(path) != text) write_atomically(path, text);
}

// The items, each of which tells when its turn has come.
std::vector<SafetensorsItem> told(std::vector<SafetensorsItem> items,
                                  const std::function<void(int64_t, int64_t)>& progress) {
  if (!progress) return items;
  const auto numbers = [](const SafetensorsItem& item) {
    return std::accumulate(item.value.shape.begin(), item.value.shape.begin() + item.value.rank,
                           int64_t{1}, std::multiplies<>());
  };
  int64_t total = 0;
  for (const SafetensorsItem& item : items) total += numbers(item);
  const auto done = std::make_shared<int64_t>(0);
  for (SafetensorsItem& item : items)
    item.produce = [=, value = item.value, produce = item.produce, count = numbers(item)] {
      progress(*done, total);
      *done += count;
      return produce ? produce() : value;
    };
  return items;
}

std::vector<FileTensor> map_of(const TensorNames& names, Model& model, const NamedTensors& file,
                               bool beside_others) {
  std::vector<FileTensor> map = map_tensors(names, model);
  change_prefix(map, names, file);
  if (beside_others) enter_text(map, file);
  return map;
}

// How many tensors of the map the file does not have, or in another shape.
int64_t misfits(const std::vector<FileTensor>& map, const NamedTensors& file) {
  return std::count_if(map.begin(), map.end(), [&](const FileTensor& tensor) {
    return !tensor.alias &&
           !(file.contains(tensor.name) && shape_of(file.get(tensor.name)) == tensor.shape);
  });
}

// By the names of the architecture that fit the file best, the usual ones where none fit better.
std::vector<FileTensor> best_map(const FolderConfig& read, Model& model, const NamedTensors& file) {
  std::vector<FileTensor> best = map_of(*read.names, model, file, read.beside_others);
  if (read.architecture->other_names.empty()) return best;
  int64_t least = misfits(best, file);
  for (const TensorNames* names : read.architecture->other_names) {
    if (least == 0) break;
    std::vector<FileTensor> map = map_of(*names, model, file, read.beside_others);
    const int64_t wrong = misfits(map, file);
    if (wrong >= least) continue;
    best = std::move(map);
    least = wrong;
  }
  return best;
}

// Takes biases that the model has not, but the weights beside them, as what nobody needs.
void pass_over_biases(std::vector<FileTensor>& map, const std::vector<std::string>& biases) {
  constexpr std::string_view kEnd = ".bias";
  std::set<std::string> known;
  for (const FileTensor& tensor : map) known.insert(tensor.name);
  for (const std::string& name : biases) {
    const std::string layer = name.substr(0, name.size() - kEnd.size());
    if (!known.contains(name) && known.contains(layer + ".weight"))
      map.push_back({.name = name, .shape = {}, .pieces = {}, .alias = true});
  }
}

void unpack_taken(UnpackedTensors& file, const std::vector<FileTensor>& map) {
  std::set<std::string_view> taken;
  for (const FileTensor& tensor : map)
    if (is_taken_here(tensor)) taken.insert(tensor.name);
  file.unpack([&](std::string_view weight) { return taken.contains(weight); });
}

LoadedModel read_model(const std::string& model, LoadFor purpose, const comm::Group& experts = {},
                       BesideText beside = BesideText::refuse);

// The base of an adapter, with it.
LoadedModel read_adapted(const std::string& folder, LoadFor purpose, const comm::Group& experts,
                         BesideText beside) {
  LoadedModel loaded =
      with_adapter(read_model(adapter_base(folder), purpose, experts, beside), folder);
  if (purpose == LoadFor::training) merge_terms(*loaded.model, 1);
  return loaded;
}

FolderConfig read_folder_config(const std::string& folder) {
  const std::string config = folder + "/config.json", beside = folder + "/" + kModelOptFile;
  FolderConfig read = read_config(read_text(config), config);
  if (read.packing.kind == Packing::Kind::none)
    if (const auto text = text_if_there(beside)) read.packing = read_modelopt_file(*text, beside);
  return read;
}

LoadedModel read_model(const std::string& model, LoadFor purpose, const comm::Group& experts,
                       BesideText beside) {
  const std::string folder = find_model(model);
  if (is_gguf(folder)) return load_gguf(folder, purpose, experts, beside);
  if (folder != model)
    if (const std::optional<HubName> name = parse_hub_name(model)) check_fetched(*name, folder);
  if (is_adapter(folder)) return read_adapted(folder, purpose, experts, beside);
  check_is_model_folder(folder);
  const FolderConfig read = read_folder_config(folder);
  const ModelConfig& config = read.config;
  const auto stored = std::make_shared<const Safetensors>(Safetensors::open(folder));
  std::shared_ptr<const NamedTensors> file = stored;
  std::shared_ptr<UnpackedTensors> unpacked;
  if (read.packing.kind != Packing::Kind::none)
    file = unpacked = std::make_shared<UnpackedTensors>(stored, read.packing);
  check_size(config, *file);
  LoadedModel loaded;
  loaded.tokenizer = load_tokenizer(folder);
  check_vocabulary(*loaded.tokenizer, config, folder);
  loaded.model = std::make_unique<Model>(
      config, purpose == LoadFor::training ? Storage::owned : Storage::bound, experts);
  std::vector<FileTensor> map = best_map(read, *loaded.model, *file);
  if (unpacked) pass_over_biases(map, unpacked->biases_of_zeros());
  loaded.left_out = check_account(map, *file, "config.json", beside);
  if (unpacked) unpack_taken(*unpacked, map);
  bind_tensors(map, *file, *loaded.model, purpose);
  if (purpose == LoadFor::inference) loaded.model->keep(file);
  loaded.source = std::make_shared<const ModelSource>(ModelSource{file, std::move(map)});
  loaded.metadata = stored->metadata();
  return loaded;
}

// Whether the folder holds a model now: a half of one need not be spared.
bool holds_model(const std::string& folder) {
  try {
    read_model(folder, LoadFor::inference);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

void check_save_target(const std::string& folder, Model& model) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error || !fs::is_directory(folder, error))
    fail("cannot make the folder {}: {}; choose another one", folder,
         error ? error.message() : "something else has this name");
  const auto before = text_if_there(folder + "/config.json");
  if (!before || *before == config_to_json(model.config())) return;
  // config.json is replaced before the tensors are, so the tensors that are there must fit both.
  try {
    check_account(map_tensors(architecture_of(model.config()), model), Safetensors::open(folder));
  } catch (const Error& e) {
    if (holds_model(folder))
      fail("{}: another model is in this folder ({}); choose another folder or delete it first",
           folder, e.what());
  }
}

ModelConfig read_model_config(const std::string& model) {
  const std::string path = find_model(model);
  if (is_gguf(path)) return gguf_config(path);
  if (is_adapter(path)) return read_model_config(adapter_base(path));
  if (!is_there(path)) fail_absent(path);
  const std::string config = path + "/config.json";
  return parse_config(read_text(config), config);
}

LoadedModel load_model(const std::string& model, const comm::Group& experts) {
  return read_model(model, LoadFor::training, experts);
}

LoadedModel open_model(const std::string& model, const MemoryLimits& limits,
                       const comm::Group& experts, BesideText beside) {
  LoadedModel loaded = read_model(model, LoadFor::inference, experts, beside);
  ops::limit_copies(loaded.model->params(), limits.for_copies());
  return loaded;
}

void save_tokenizer(const std::string& folder, const Tokenizer& tokenizer) {
  write_if_different(folder + "/tokenizer.json", tokenizer.to_json());
  if (!tokenizer.config_json().empty())
    write_if_different(folder + "/tokenizer_config.json", tokenizer.config_json());
  if (const std::string generation = generation_json(tokenizer); !generation.empty())
    write_if_different(folder + "/generation_config.json", generation);
}

void save_model(const std::string& folder, Model& model, const Tokenizer& tokenizer, DType dtype,
                const std::map<std::string, std::string>& metadata,
                const std::function<void(int64_t done, int64_t total)>& progress) {
  if (dtype != DType::f32 && dtype != DType::bf16)
    fail_usage("a model is saved as f32 or bf16, not {}", name_of(dtype));
  check_vocabulary(tokenizer, model.config(), folder);
  const Architecture& architecture = architecture_of(model.config());
  const std::vector<SafetensorsItem> items = items_of(
      map_tensors(architecture, model), dtype, architecture.stores_tied_head, model.experts());
  if (!model.experts().is_first()) return produce_in_order(items);
  check_save_target(folder, model);
  write_if_different(folder + "/config.json", config_to_json(model.config()));
  save_tokenizer(folder, tokenizer);
  write_safetensors(folder + "/model.safetensors", told(items, progress), metadata);
}

}  // namespace moe
