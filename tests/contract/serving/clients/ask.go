// Go's client with its defaults. Arguments: URL, how many, how many at once.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
)

func ask(url string, number int) error {
	answer, err := http.Post(url, "application/json", strings.NewReader(strconv.Itoa(number)))
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode != 200 || string(body) != strconv.Itoa(number) {
		return fmt.Errorf("%d: %s %s", number, answer.Status, body)
	}
	return nil
}

func main() {
	count, _ := strconv.Atoi(os.Args[2])
	atOnce, _ := strconv.Atoi(os.Args[3])
	var all sync.WaitGroup
	errors := make(chan error, count)
	for seat := 0; seat < atOnce; seat++ {
		all.Add(1)
		go func(seat int) {
			defer all.Done()
			for number := seat; number < count; number += atOnce {
				errors <- ask(os.Args[1], number)
			}
		}(seat)
	}
	all.Wait()
	close(errors)
	right := 0
	for err := range errors {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		right++
	}
	fmt.Println(right, "right")
}
