// main of a program of tests. `--of=hub/convert` runs those of tests/hub/convert_test.cpp alone,
// beside --gtest_filter=-... which may leave some of them out.
#include <gtest/gtest.h>

#include <iostream>
#include <string>
#include <string_view>

namespace {

// "Suite.Test:Suite.Other:" of a file.
std::string tests_of(const std::string& name) {
  const std::string file = "/" + name + "_test.cpp";
  std::string tests;
  const auto& all = *testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *all.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const testing::TestInfo& test = *suite.GetTestInfo(t);
      if (std::string_view(test.file()).ends_with(file))
        tests += std::string(suite.name()) + "." + test.name() + ":";
    }
  }
  return tests;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const std::string_view option = "--of=";
  if (argc < 2) return RUN_ALL_TESTS();
  const std::string_view given = argv[1], filter = testing::GTEST_FLAG(filter);
  const bool leaves_out = filter.starts_with('-');
  const std::string tests =
      given.starts_with(option) ? tests_of(std::string(given.substr(option.size()))) : "";
  if (argc > 2 || tests.empty() || (filter != "*" && !leaves_out)) {
    std::cerr << "usage: " << argv[0] << " [--of=FOLDER/NAME] [--gtest_...]; --of goes by a file "
              << "of tests that this program holds, and with --gtest_filter=-...\n";
    return 2;
  }
  testing::GTEST_FLAG(filter) = tests + (leaves_out ? std::string(filter) : "");
  return RUN_ALL_TESTS();
}
