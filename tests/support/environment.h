// Variables of the environment as a test wants them, and as they were when it ends.
#pragma once

#include <cstdlib>
#include <map>
#include <optional>
#include <string>

namespace moe::test {

class Environment {
 public:
  Environment() = default;
  ~Environment() {
    for (const auto& [name, value] : before_)
      value ? setenv(name.c_str(), value->c_str(), 1) : unsetenv(name.c_str());
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

  void set(const std::string& name, const std::string& value) {
    keep(name);
    setenv(name.c_str(), value.c_str(), 1);
  }
  void unset(const std::string& name) {
    keep(name);
    unsetenv(name.c_str());
  }

 private:
  void keep(const std::string& name) {
    const char* const old = std::getenv(name.c_str());
    before_.emplace(name, old != nullptr ? std::optional<std::string>(old) : std::nullopt);
  }

  std::map<std::string, std::optional<std::string>> before_;
};

}  // namespace moe::test
