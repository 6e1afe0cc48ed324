// Models that are on the machine already, where Hugging Face's programs and llama.cpp's -hf keep
// them: what OWNER/NAME means there, which file or folder it is, and whether all of it is here.
// Nothing is fetched.
// Layout: huggingface_hub, "Understand caching": models--OWNER--NAME/refs/REVISION has the commit
// that the revision was when it was fetched, snapshots/COMMIT its files, links into blobs/.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace moe {

// OWNER/NAME, OWNER/NAME@REVISION, OWNER/NAME:TYPE. The oldest repositories have no owner.
struct HubName {
  std::string repository;
  std::string revision;  // a branch, a tag or a commit; empty: main
  std::string type;      // a word in the name of a .gguf file, as Q4_K_M; empty: none was said
};
// Nothing for what is no such name, above all for what could lead to another folder.
std::optional<HubName> parse_hub_name(std::string_view text);
std::string as_text(const HubName&);
// Letters, digits and '-', '_', '.' between them: what is safe as a part of a path.
bool is_plain_name(std::string_view text);
bool is_hex(std::string_view text);

// The cache; empty where the environment does not say where.
std::string hub_cache();
// The repository's folder in it, whether or not it is there.
std::string hub_place(const HubName&);
// What fetches it, as a line for a shell.
std::string fetch_command(const HubName&);

// The snapshot's folder, or the .gguf file in it; nothing where nothing of the repository is here.
// Fails where it is, but not the revision, no model, not all parts of the file, or where several
// files are meant.
std::optional<std::string> find_in_hub_cache(const HubName&);
// Fails where a snapshot has not all files of weights or no tokenizer. Apart from finding it, as
// the configuration alone is enough for some.
void check_fetched(const HubName&, const std::string& snapshot);

struct HubModel {
  std::string name;  // by which it is found
  std::string path;
  std::string kind;   // its "model_type", "gguf" or "adapter"
  int64_t bytes = 0;  // of its weights, as far as they are here
  bool whole = true;
};
// Those that can be opened, by their configuration or as .gguf files, sorted by name.
std::vector<HubModel> models_in_hub_cache();

}  // namespace moe
