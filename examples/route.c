/* A routing recipe worked out on four tokens' logits, from plain C. */
#include <moe/moe.h>
#include <stdio.h>

int main(void) {
  char* reply;
  const moe_status status = moe_route(
      "{\"recipe\": \"st-moe\", \"logits\": "
      "[[2, 1, 0, -1], [1.5, 1.5, 0.5, 0], [3, -1, 2, 0], [0.2, 0.1, 0, 2.2]]}",
      &reply);
  if (status != MOE_OK) {
    fprintf(stderr, "%s\n", moe_last_error());
    return status;
  }
  puts(reply);
  moe_free(reply);
  return 0;
}
