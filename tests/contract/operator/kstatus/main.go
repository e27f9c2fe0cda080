// Reads JSON objects by name and says what tools that know nothing of BatchedAPIs take them for:
// Flux and Helm by kstatus, Argo CD by the Lua of the guide.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

type verdict struct {
	Kstatus string `json:"kstatus"`
	Message string `json:"message"`
	Argo    string `json:"argo"`
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// toLua is how Argo CD hands an object to a health check: tables of what JSON has.
func toLua(state *lua.LState, value any) lua.LValue {
	switch value := value.(type) {
	case map[string]any:
		table := state.NewTable()
		for name, member := range value {
			table.RawSetString(name, toLua(state, member))
		}
		return table
	case []any:
		table := state.NewTable()
		for _, member := range value {
			table.Append(toLua(state, member))
		}
		return table
	case string:
		return lua.LString(value)
	case bool:
		return lua.LBool(value)
	case float64:
		return lua.LNumber(value)
	case int64:
		return lua.LNumber(value)
	}
	return lua.LNil
}

func health(script string, object map[string]any) string {
	state := lua.NewState()
	defer state.Close()
	state.SetGlobal("obj", toLua(state, object))
	check(state.DoString(script))
	return state.Get(-1).(*lua.LTable).RawGetString("status").String()
}

// kstatus LUA < objects.json > verdicts.json
func main() {
	script, err := os.ReadFile(os.Args[1])
	check(err)
	objects, verdicts := map[string]json.RawMessage{}, map[string]verdict{}
	check(json.NewDecoder(os.Stdin).Decode(&objects))
	for name, raw := range objects {
		object := &unstructured.Unstructured{}
		check(object.UnmarshalJSON(raw))
		found, err := status.Compute(object)
		check(err)
		verdicts[name] = verdict{found.Status.String(), found.Message, health(string(script), object.Object)}
	}
	check(json.NewEncoder(os.Stdout).Encode(verdicts))
}
