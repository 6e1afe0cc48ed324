// A cache as huggingface_hub and llama.cpp leave it: each file of a snapshot is a relative link to
// a blob.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "support/files.h"

namespace moe::test {

class MadeRepository {
 public:
  MadeRepository(const std::string& cache, const std::string& owner, const std::string& name)
      : place_(cache + "/models--" + owner + "--" + name) {}

  void ref(const std::string& revision, const std::string& commit) const {
    put(place_ + "/refs/" + revision, commit);
  }
  // `name` may lie in folders below the snapshot.
  void file(const std::string& commit, const std::string& name, const std::string& content) const {
    const std::string blob = std::to_string(std::hash<std::string>{}(commit + "/" + name));
    put(place_ + "/blobs/" + blob, content);
    const std::filesystem::path link = snapshot(commit) + "/" + name;
    std::filesystem::create_directories(link.parent_path());
    std::string up = "../../";
    for (const char c : name) up += c == '/' ? "../" : "";
    std::filesystem::create_symlink(up + "blobs/" + blob, link);
  }
  // All files of a folder.
  void files(const std::string& commit, const std::string& folder) const {
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      file(commit, entry.path().filename().string(), slurp(entry.path().string()));
  }
  // As where a download ended early.
  void drop(const std::string& commit, const std::string& name) const {
    std::filesystem::remove(snapshot(commit) + "/" + name);
  }
  std::string snapshot(const std::string& commit) const { return place_ + "/snapshots/" + commit; }
  const std::string& place() const { return place_; }

 private:
  std::string place_;
};

}  // namespace moe::test
