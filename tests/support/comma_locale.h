// A locale whose decimal point is a comma, as in most of Europe, while a test runs: what a program
// around the library may have set. It is made for the test, as few machines have one.
#pragma once

#include <clocale>
#include <cstdlib>
#include <string>

#include "support/environment.h"
#include "support/files.h"

namespace moe::test {

class CommaLocale {
 public:
  CommaLocale() : before_(std::setlocale(LC_NUMERIC, nullptr)) {
    put(folder_ / "source",
        "LC_NUMERIC\ndecimal_point \",\"\nthousands_sep \".\"\ngrouping 3\n"
        "END LC_NUMERIC\n");
    // It warns of all that a locale has beside numbers, and says so by its status.
    const std::string make = "localedef -c -i '" + (folder_ / "source") + "' -f ANSI_X3.4-1968 '" +
                             (folder_ / "xx_XX") + "' > '" + (folder_ / "said") + "' 2>&1";
    [[maybe_unused]] const int status = std::system(make.c_str());
    environment_.set("LOCPATH", folder_.path());
    works_ = std::setlocale(LC_NUMERIC, "xx_XX") != nullptr &&
             std::string(std::localeconv()->decimal_point) == ",";
  }
  ~CommaLocale() { std::setlocale(LC_NUMERIC, before_.c_str()); }
  CommaLocale(const CommaLocale&) = delete;
  CommaLocale& operator=(const CommaLocale&) = delete;

  // False where this system cannot make one.
  bool works() const { return works_; }

 private:
  std::string before_;
  TempFolder folder_;
  Environment environment_;
  bool works_ = false;
};

}  // namespace moe::test
