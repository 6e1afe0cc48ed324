// Trains a small model on a text file, saves it, loads it again, lets it write and says how well it
// predicts the text.
//
//   train_and_generate TEXT FOLDER [STEPS]
#include <moe/moe.hpp>

#include <cstdint>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

int main(int count, char** words) {
  if (count < 3) {
    std::cerr << "usage: train_and_generate TEXT FOLDER [STEPS]\n";
    return 2;
  }
  const std::string text_file = words[1], folder = words[2];
  const std::string steps = count > 3 ? words[3] : "200";
  try {
    const auto show_progress = [&](const std::string& metrics) {
      std::cerr << "\rstep " << moe::number(metrics, "step") << " of " << steps << ", "
                << moe::number(metrics, "ce") << " nats a token  " << std::flush;
      return true;  // false would save and end the run
    };
    moe::train({{"preset", "tiny"}, {"data", text_file}, {"out", folder}, {"steps", steps}},
               show_progress);
    std::cerr << "\n";

    moe::Model trained = moe::Model::load(folder);
    trained.save(folder + "-half", {{"dtype", "bf16"}});  // half the bytes

    moe::Model model = moe::Model::load(folder + "-half");
    model.generate("The ", {{"tokens", 200}, {"temperature", 0.7}, {"seed", 1}},
                   [](std::string_view piece) {
                     std::cout << piece << std::flush;
                     return true;  // false would end the text
                   });

    std::ifstream file(text_file, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const moe::Score score = model.score(text, {{"windows", 16}});
    std::cout << "\n"
              << score.bits_per_byte << " bits per byte, perplexity " << score.perplexity
              << " a token\n";

    const std::vector<int32_t> ids = model.encode("The");
    const moe::Routing routing = model.routing(ids);
    const std::string token = model.decode({ids.data(), 1});
    std::cout << "'" << token << "' goes to experts " << routing.expert(0, 0, 0) << " and "
              << routing.expert(0, 0, 1) << " of the first layer\n";
  } catch (const moe::Error& error) {
    std::cerr << error.what() << "\n";
    return error.status();
  }
}
