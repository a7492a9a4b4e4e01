// Renders the chart as helm does, for machines without helm: Go's own templates, the sprig
// functions helm gives them, and the few functions helm adds, which are written here.
//
//	go run main.go CHART VALUES.json     (values merged over the chart's own; documents to stdout)
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"github.com/ghodss/yaml"
)

type values = map[string]interface{}

type files struct{ folder string }

// Get is .Files.Get: the text of a file of the chart, or nothing.
func (f files) Get(name string) string {
	text, err := os.ReadFile(filepath.Join(f.folder, name))
	if err != nil {
		return ""
	}
	return string(text)
}

func main() {
	if err := render(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func render(chart string, given string) error {
	own, err := read(filepath.Join(chart, "values.yaml"))
	if err != nil {
		return err
	}
	over, err := read(given)
	if err != nil {
		return err
	}
	about, err := read(filepath.Join(chart, "Chart.yaml"))
	if err != nil {
		return err
	}
	context := values{
		"Values":  merged(own, over),
		"Release": values{"Name": "fleet", "Namespace": "default", "Service": "Helm"},
		// helm names these fields as Go does.
		"Chart": values{"Name": about["name"], "Version": about["version"], "AppVersion": about["appVersion"]},
		"Files": files{chart},
	}
	root := template.New("chart").Option("missingkey=error")
	functions := sprig.TxtFuncMap()
	functions["include"] = func(name string, data interface{}) (string, error) {
		var text bytes.Buffer
		err := root.ExecuteTemplate(&text, name, data)
		return text.String(), err
	}
	functions["toYaml"] = func(value interface{}) (string, error) {
		text, err := yaml.Marshal(value)
		return strings.TrimSuffix(string(text), "\n"), err
	}
	functions["required"] = func(message string, value interface{}) (interface{}, error) {
		if value == nil || value == "" {
			return nil, errors.New(message)
		}
		return value, nil
	}
	root.Funcs(functions)
	names, err := filepath.Glob(filepath.Join(chart, "templates", "*"))
	if err != nil {
		return err
	}
	sort.Strings(names)
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if _, err := root.New(filepath.Base(name)).Parse(string(text)); err != nil {
			return err
		}
	}
	for _, name := range names {
		if filepath.Ext(name) == ".yaml" {
			fmt.Println("---")
			if err := root.ExecuteTemplate(os.Stdout, filepath.Base(name), context); err != nil {
				return err
			}
			fmt.Println()
		}
	}
	return root.ExecuteTemplate(os.Stderr, "NOTES.txt", context)
}

func read(path string) (values, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var read values
	return read, yaml.Unmarshal(text, &read)
}

// merged lays `over` on `own`, table by table, as helm does with --values.
func merged(own values, over values) values {
	for name, value := range over {
		inner, isTable := value.(values)
		outer, wasTable := own[name].(values)
		if isTable && wasTable {
			own[name] = merged(outer, inner)
		} else {
			own[name] = value
		}
	}
	return own
}
