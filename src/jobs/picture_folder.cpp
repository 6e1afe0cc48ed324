#include "jobs/picture_folder.h"

#include <filesystem>

#include "core/error.h"
#include "core/file.h"

namespace moe {

void make_picture_folder(const std::string& folder) {
  if (folder.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail("cannot make the folder of @pictures, '{}': {}", folder, error.message());
}

void write_pictures(const std::string& folder, const Pictures& pictures) {
  for (const auto& [name, svg] : pictures) write_atomically(folder + "/" + name, svg);
}

}  // namespace moe
