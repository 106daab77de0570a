// Which models a running server serves.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "server/chat_connection.h"

namespace tailrace {

struct ListedModel {
  std::string name;
  int32_t context_length = 0;  // 0: the server does not say
};

// GET /v1/models; at least one model. kUnavailable: nobody answers there, or not so; the server's
// words where it has some.
Expected<std::vector<ListedModel>> list_models(const ServerAddress& address,
                                               std::function<bool()> stop);

}  // namespace tailrace
